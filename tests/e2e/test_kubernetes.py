"""What is shipped for Kubernetes is what Kubernetes takes, and runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.sdk.fake_server import fake_server
from tests.support.pages import ROOT, blocks
from tests.support.servers.commands import start_command

MANIFESTS = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
SIDECAR = ROOT / "deploy/kubernetes/sidecar.yaml"
OLDEST_WITH_NATIVE_SIDECARS, NEWEST = "1.29", "1.34"


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def pod() -> Any:
    return documents(SIDECAR)[0]["spec"]["template"]["spec"]


def dispatcher() -> Any:
    [container] = pod()["initContainers"]
    return container


@pytest.mark.parametrize("version", [OLDEST_WITH_NATIVE_SIDECARS, NEWEST])
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_every_manifest_is_valid(path: Path, version: str) -> None:
    for document in documents(path):
        kubernetes_validate.validate(document, version, strict=True)


def test_the_validator_knows_what_is_wrong() -> None:
    document = documents(SIDECAR)[0]
    document["spec"]["template"]["spec"]["initContainers"][0]["restartsAlways"] = True

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, NEWEST, strict=True)


def test_the_dispatcher_is_a_native_sidecar() -> None:
    assert dispatcher()["restartPolicy"] == "Always"


def test_a_pod_has_no_token_of_its_cluster_and_no_privileges() -> None:
    spec = pod()

    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_page_shows_the_manifest_as_it_is() -> None:
    [shown] = blocks("docs/guides/sidecars.md", "yaml")
    [container] = yaml.safe_load(shown)["initContainers"]

    assert container == {key: dispatcher()[key] for key in container}


async def test_the_command_of_the_manifest_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    container = dispatcher()
    for variable in container["env"]:
        monkeypatch.setitem(os.environ, variable["name"], variable["value"])
    assert container["command"][0] == "stepwell"
    async with (
        fake_server() as server,
        start_command(*container["command"][1:], *container["args"], server=server.address, cwd=tmp_path) as sidecar,
    ):
        await sidecar.says("posts to http://127.0.0.1:8080/wake for what has no worker, in default")
        assert server.dispatchers.requests[0].filter.names == ["order"]
        assert await sidecar.stop() == 0
