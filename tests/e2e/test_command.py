"""The `stepwell` command, as a person types it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from stepwell import __version__
from stepwell.cli import commands
from stepwell_server import config
from tests.support.databases.postgres import PostgresServer
from tests.support.faults.faults import damage
from tests.support.servers.commands import stepwell, stepwell_process
from tests.support.servers.servers import ServerProcess, start_process


@pytest.fixture
async def running(sqlite_url: str) -> AsyncIterator[ServerProcess]:
    async with start_process(sqlite_url) as server:
        yield server


async def test_version() -> None:
    assert await stepwell_process("version") == (0, f"{__version__}\n", "")
    assert await stepwell("--version") == (0, f"{__version__}\n", "")


async def test_info_shows_what_the_server_says(running: ServerProcess) -> None:
    code, out, _ = await stepwell_process("info", server=running.listen)
    assert code == 0
    assert f"Stepwell {__version__} at {running.listen}" in out
    assert "sqlite" in out

    code, out, _ = await stepwell("info", "--json", server=running.listen)
    assert json.loads(out)["database"]["kind"] == "DATABASE_KIND_SQLITE"


async def test_namespaces_are_created_and_listed(running: ServerProcess) -> None:
    created = await stepwell_process(
        "namespace", "create", "billing", "--description", "invoices", server=running.listen
    )
    assert created == (0, "created namespace billing\n", "")
    hostile = await stepwell("namespace", "create", "odd", "--description", "[bold]x[/y]", server=running.listen)
    assert hostile[0] == 0

    code, out, _ = await stepwell("namespace", "list", server=running.listen)
    assert code == 0
    assert "billing" in out and "invoices" in out and "default" in out and "[bold]x[/y]" in out

    code, out, _ = await stepwell("namespace", "list", "--json", server=running.listen)
    assert [one["name"] for one in json.loads(out)["namespaces"]] == ["billing", "default", "odd"]


async def test_what_came_from_the_server_stays_on_its_line_and_hides_nothing(running: ServerProcess) -> None:
    hostile = "a\nb\r\x1b[2Jc\u202ed\u200be\u2028[red]f"
    await stepwell("namespace", "create", "odd", "--description", hostile, server=running.listen)

    _, out, _ = await stepwell("namespace", "list", server=running.listen)
    [line] = [line for line in out.split("\n") if line.startswith("odd")]
    assert r"a\nb\r\x1b[2Jc\u202ed\u200be\u2028[red]f" in line

    _, _, refused = await stepwell("workflow", "get", "w", "x\u202ey\nz", server=running.listen)
    assert refused.count("\n") == 1 and "\u202e" not in refused


async def test_a_refusal_is_one_line_and_an_exit_code(running: ServerProcess) -> None:
    again = await stepwell("namespace", "create", "default", server=running.listen)
    assert again == (1, "", "stepwell: a namespace of that name exists (NAMESPACE_ALREADY_EXISTS: namespace=default)\n")

    code, _, err = await stepwell("info", server="127.0.0.1:1")
    assert (code, err) == (1, "stepwell: no server answers at 127.0.0.1:1: Connection refused (UNAVAILABLE)\n")

    code, _, err = await stepwell("info", server=running.ops_listen)
    told = f"stepwell: what answers at {running.ops_listen} is no Stepwell server, or an older one (UNIMPLEMENTED)\n"
    assert (code, err) == (1, told)

    code, _, err = await stepwell("info", server="nowhere")
    assert code == 2
    assert "must be HOST:PORT" in err


async def test_migrate_makes_a_database_that_a_server_serves(sqlite_url: str) -> None:
    code, out, err = await stepwell_process("migrate", "--database", sqlite_url)
    assert (code, err) == (0, "")
    assert out.startswith("the database is at schema 00")

    async with start_process(sqlite_url, "--no-auto-migrate") as server:
        assert (await stepwell("info", server=server.listen))[0] == 0


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_migrate_check_changes_nothing_and_says_whether_the_database_can_be_served(
    kind: str, tmp_path: Path, postgres: PostgresServer
) -> None:
    database_url = f"sqlite:///{tmp_path}/empty.db" if kind == "sqlite" else postgres.create_database()
    code, _, err = await stepwell_process("migrate", "--check", "--database", database_url)
    assert (code, len(err.splitlines())) == (1, 1)
    assert "there is no file" in err or "it has no schema" in err
    assert (await stepwell_process("migrate", "--check", "--database", database_url))[2] == err

    await stepwell_process("migrate", "--database", database_url)
    code, out, err = await stepwell_process("migrate", "--check", "--database", database_url)

    assert (code, err) == (0, "")
    assert out.startswith("the database is at schema 00")


async def test_migrate_check_finds_a_damaged_file(tmp_path: Path) -> None:
    file = tmp_path / "stepwell.db"
    await stepwell_process("migrate", "--database", f"sqlite:///{file}")
    damage(file, "hooks")

    code, out, err = await stepwell_process("migrate", "--check", "--database", f"sqlite:///{file}")

    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert err.startswith("stepwell: cannot use the database: it is damaged: ")


async def test_the_server_has_a_help_of_its_own() -> None:
    code, out, _ = await stepwell_process("server", "--help")

    assert code == 0
    assert "--ops-listen HOST:PORT" in out


async def test_a_misspelt_variable_is_warned_of_and_one_of_the_servers_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in config.variables():
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("STEPWELL_SEVRER", "db:1")

    _, _, err = await stepwell("namespace", "list", server="127.0.0.1:1")

    assert err.splitlines()[:-1] == ["stepwell: STEPWELL_SEVRER is not a setting; did you mean STEPWELL_SERVER?"]


async def test_the_server_warns_of_variables_that_are_no_settings(sqlite_url: str) -> None:
    async with start_process(sqlite_url, STEPWELL_DATABSE="x") as server:
        assert await server.stop() == 0

    [line] = [line for line in server.log if "unknown_variable" in line]
    assert "STEPWELL_DATABSE is not a setting; did you mean STEPWELL_DATABASE?" in line


def duration_options(command: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Every option that takes a duration, with its command."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from duration_options(inner, *path, name)
    for one in command.params:
        if one.metavar == "DURATION":
            yield *path, one.opts[0]


@pytest.mark.parametrize("option", [*duration_options(typer.main.get_command(commands.app))], ids=" ".join)
@pytest.mark.parametrize("wrong", ["5", "-3s", "1 fortnight", "400 days", "99999999999 days"])
async def test_a_duration_that_is_refused_names_its_option(option: tuple[str, ...], wrong: str) -> None:
    code, _, err = await stepwell(*option, wrong)

    assert code == 2
    assert f"Invalid value for '{option[-1]}': " in err
    assert wrong in err


async def test_more_attempts_than_there_may_be_are_refused() -> None:
    code, _, err = await stepwell("hook", "trigger", "note", "--max-attempts", "1000001")

    assert code == 2
    assert "Invalid value for '--max-attempts': " in err
