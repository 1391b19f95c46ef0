"""NamespaceService, as its callers see it."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask

from stepwell.v1 import namespaces_pb2 as pb
from stepwell.v1.namespaces_pb2_grpc import NamespaceServiceStub
from tests.support.calls.errors import refusal
from tests.support.servers.servers import Served


@pytest.fixture
def namespaces(server: Served) -> NamespaceServiceStub:
    return NamespaceServiceStub(server.channel)


async def test_a_server_is_born_with_the_default_namespace(namespaces: NamespaceServiceStub) -> None:
    answer = await namespaces.ListNamespaces(pb.ListNamespacesRequest())

    assert [one.name for one in answer.namespaces] == ["default"]
    assert answer.next_page_token == ""


async def test_a_created_namespace_is_returned_and_listed_as_it_was_asked_for(namespaces: NamespaceServiceStub) -> None:
    request = pb.CreateNamespaceRequest(
        name="billing",
        description="invoices",
        retention=pb.Retention(complete=Duration(seconds=3600)),
        limits=pb.NamespaceLimits(max_payload_bytes=1000),
    )

    created = (await namespaces.CreateNamespace(request)).namespace

    assert (created.name, created.description) == ("billing", "invoices")
    assert created.retention == pb.Retention(complete=Duration(seconds=3600))
    assert created.limits == pb.NamespaceLimits(max_payload_bytes=1000)
    assert created.created_at == created.updated_at
    listed = (await namespaces.ListNamespaces(pb.ListNamespacesRequest())).namespaces
    assert listed[0] == created


async def test_a_name_that_exists_is_refused(namespaces: NamespaceServiceStub) -> None:
    error = await refusal(namespaces.CreateNamespace(pb.CreateNamespaceRequest(name="default")))

    assert (error.code.name, error.reason) == ("ALREADY_EXISTS", "NAMESPACE_ALREADY_EXISTS")
    assert error.metadata == {"namespace": "default"}


async def test_a_repeated_request_is_answered_again_and_done_once(namespaces: NamespaceServiceStub) -> None:
    request = pb.CreateNamespaceRequest(name="billing", request_id="once")

    first = await namespaces.CreateNamespace(request)
    second = await namespaces.CreateNamespace(request)

    assert second == first


async def test_a_request_id_is_not_good_for_another_body(namespaces: NamespaceServiceStub) -> None:
    await namespaces.CreateNamespace(pb.CreateNamespaceRequest(name="billing", request_id="once"))

    for changed in (
        pb.CreateNamespaceRequest(name="billing", description="other", request_id="once"),
        pb.CreateNamespaceRequest(name="shipping", request_id="once"),
    ):
        error = await refusal(namespaces.CreateNamespace(changed))
        assert (error.code.name, error.reason) == ("FAILED_PRECONDITION", "IDEMPOTENCY_KEY_REUSED")


async def test_a_refused_request_is_not_remembered(namespaces: NamespaceServiceStub) -> None:
    request = pb.UpdateNamespaceRequest(
        name="later", description="now", update_mask=FieldMask(paths=["description"]), request_id="again"
    )
    assert (await refusal(namespaces.UpdateNamespace(request))).reason == "NAMESPACE_NOT_FOUND"
    await namespaces.CreateNamespace(pb.CreateNamespaceRequest(name="later"))

    answer = await namespaces.UpdateNamespace(request)

    assert answer.namespace.description == "now"


async def test_an_update_changes_what_the_mask_names_and_nothing_else(namespaces: NamespaceServiceStub) -> None:
    kept = pb.Retention(complete=Duration(seconds=3600), errored=Duration(seconds=7200))
    await namespaces.CreateNamespace(pb.CreateNamespaceRequest(name="billing", description="old", retention=kept))

    change = pb.UpdateNamespaceRequest(
        name="billing",
        description="not taken",
        retention=pb.Retention(complete=Duration(seconds=60), errored=Duration(seconds=61)),
        update_mask=FieldMask(paths=["retention.complete"]),
    )
    updated = (await namespaces.UpdateNamespace(change)).namespace

    assert updated.description == "old"
    assert updated.retention == pb.Retention(complete=Duration(seconds=60), errored=Duration(seconds=7200))
    assert updated.updated_at.ToMicroseconds() > updated.created_at.ToMicroseconds()


async def test_a_masked_field_that_is_unset_goes_back_to_its_default(namespaces: NamespaceServiceStub) -> None:
    kept = pb.Retention(complete=Duration(seconds=3600))
    await namespaces.CreateNamespace(pb.CreateNamespaceRequest(name="billing", retention=kept))

    change = pb.UpdateNamespaceRequest(name="billing", update_mask=FieldMask(paths=["retention"]))
    updated = (await namespaces.UpdateNamespace(change)).namespace

    assert updated.retention == pb.Retention()


@pytest.mark.parametrize("paths", [[], ["name"], ["created_at"], ["retention.forever"], ["limits.", "description"]])
async def test_a_mask_that_names_nothing_changeable_is_refused(
    namespaces: NamespaceServiceStub, paths: list[str]
) -> None:
    change = pb.UpdateNamespaceRequest(name="default", update_mask=FieldMask(paths=paths))

    assert (await refusal(namespaces.UpdateNamespace(change))).reason == "UPDATE_MASK_INVALID"


async def test_pages_add_up_to_the_whole_list_in_order(namespaces: NamespaceServiceStub) -> None:
    for number in range(7):
        await namespaces.CreateNamespace(pb.CreateNamespaceRequest(name=f"team-{number}"))

    seen: list[str] = []
    token = ""
    while True:
        page = await namespaces.ListNamespaces(pb.ListNamespacesRequest(page_size=3, page_token=token))
        assert len(page.namespaces) <= 3
        seen += [one.name for one in page.namespaces]
        token = page.next_page_token
        if not token:
            break

    assert seen == ["default", *(f"team-{number}" for number in range(7))]


async def test_upper_and_lower_case_sort_alike_on_both_databases(namespaces: NamespaceServiceStub) -> None:
    for name in ("b", "A", "a", "_"):
        await namespaces.CreateNamespace(pb.CreateNamespaceRequest(name=name))

    listed = await namespaces.ListNamespaces(pb.ListNamespacesRequest())

    assert [one.name for one in listed.namespaces] == ["A", "_", "a", "b", "default"]
