"""The house rules that no linter knows. Each failure says what to do."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.v1 import errors_pb2
from stepwell_server.api.edge import access, errors
from stepwell_server.domain.values import errors as domain_errors
from tests.support.calls.contract import methods
from tests.support.calls.reasons import documented

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "server" / "stepwell_server"
FLOORS = ("api", "engine", "storage", "domain")

LONGEST_FILE = 500
LONGEST_FUNCTION = 50

SHARED_PROTOS = {"common", "errors", "frames"}
EVERY_FLOOR = {"namespaces", "workflows", "hooks"}  # primitives: the same stem from the proto down to the domain

PROCESS_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
MAY_READ_PROCESS_CLOCK = {"storage/database/sqlite.py"}  # there, this process is the database

VAGUE_NAMES = {"utils", "helpers", "manager", "base", "misc"}


def python_files() -> list[Path]:
    return sorted(
        path
        for folder in ("server", "clients/python", "tests", "bench", "examples")
        for path in (ROOT / folder).rglob("*.py")
        if not {"v1", "build", "migrations"} & {*path.parts}
    )


def server_files() -> list[Path]:
    return [path for path in sorted(SERVER.rglob("*.py")) if "migrations" not in path.parts]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_FILE, "split the file by what it is about"
    for function in functions(path):
        assert function.end_lineno is not None
        length = function.end_lineno - function.lineno + 1
        assert length <= LONGEST_FUNCTION, f"{function.name} has {length} lines: name its parts"


def test_a_service_has_the_same_stem_on_every_floor() -> None:
    stems = {path.stem for path in (ROOT / "proto/stepwell/v1").glob("*.proto")} - SHARED_PROTOS
    for stem in stems:
        floors = FLOORS if stem in EVERY_FLOOR else ("api", "engine")
        for floor in floors:
            room = SERVER / floor / stem
            assert room.is_dir() or room.with_suffix(".py").exists(), f"{stem}.proto has no {floor}/{stem}"
        assert (ROOT / "tests/api" / f"test_{stem}.py").exists(), f"{stem} has no stories in tests/api"


@pytest.mark.parametrize("path", server_files(), ids=lambda path: str(path.relative_to(SERVER)))
def test_no_decision_reads_the_process_clock(path: Path) -> None:
    if path.relative_to(SERVER).as_posix() in MAY_READ_PROCESS_CLOCK:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            assert ast.unparse(node) not in PROCESS_CLOCKS, f"line {node.lineno}: use db_now() or lease_now()"


@pytest.mark.parametrize("path", server_files(), ids=lambda path: str(path.relative_to(SERVER)))
def test_every_public_name_has_a_docstring_and_every_module_a_sentence(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "say in a sentence what the module is about"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            is_error = path.match("domain/values/errors.py")  # those are documented in errors.proto, which users read
            assert is_error or ast.get_docstring(node), f"{node.name} promises nothing: give it a docstring"


def test_no_module_has_a_vague_name() -> None:
    assert not [path for path in server_files() if path.stem in VAGUE_NAMES]


def test_sql_is_written_with_bound_parameters_only() -> None:
    for path in [one for one in server_files() if "storage" in one.parts]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("text", "sa.text"):
                assert isinstance(node.args[0], ast.Constant), f"{path.name}:{node.lineno} builds SQL from a string"


def domain_error_types() -> list[type[domain_errors.StepwellError]]:
    return [
        cls
        for _, cls in inspect.getmembers(domain_errors, inspect.isclass)
        if issubclass(cls, domain_errors.StepwellError) and cls is not domain_errors.StepwellError
    ]


@pytest.mark.parametrize("cls", domain_error_types(), ids=lambda cls: cls.__name__)
def test_every_refusal_has_a_code_and_a_documented_reason(cls: type[domain_errors.StepwellError]) -> None:
    assert cls in errors.CODES, "give it a row in api/edge/errors.py"
    assert f"ERROR_REASON_{cls.reason}" in errors_pb2.ErrorReason.DESCRIPTOR.values_by_name, (
        "document the reason in errors.proto"
    )
    assert cls.__name__ in (domain_errors.__doc__ or ""), "draw it into the tree of domain/values/errors.py"


def refusals_made(path: Path) -> Iterator[tuple[int, str, set[str]]]:
    """Where a file makes a refusal, of which reason, and the keys of its metadata."""
    reasons = {cls.__name__: cls.reason for cls in domain_error_types()}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func).removeprefix("errors.")) in reasons:
            keys = {one.arg for one in node.keywords if one.arg is not None}
            yield node.lineno, reasons[name], keys - {"retry_after"}


@pytest.mark.parametrize("path", server_files(), ids=lambda path: str(path.relative_to(SERVER)))
def test_every_refusal_carries_the_metadata_that_the_contract_lists(path: Path) -> None:
    contract = documented()
    for line, reason, keys in refusals_made(path):
        said = f"line {line}: {reason} carries {sorted(keys)}, and errors.proto says {contract[reason]}"
        assert contract[reason].describes(keys), said


def test_every_method_of_the_contract_has_a_category() -> None:
    contract = {method.path for method in methods().values()}

    ours = {method for method in access.METHODS if method.startswith("/stepwell.")}
    assert ours == contract, "keep api/edge/access.py in step with the proto files"
    assert contract >= access.KNOWN_METHODS | access.ASKING_METHODS, "these methods are gone"


def test_the_two_distributions_have_one_version() -> None:
    import stepwell
    import stepwell_server

    assert stepwell.__version__ == stepwell_server.__version__


def test_locks_carry_no_registry_addresses() -> None:
    for lock in ("requirements/dev.lock", "clients/typescript/package-lock.json", "clients/go/go.sum"):
        text = (ROOT / lock).read_text()
        assert "index-url" not in text
        assert '"resolved"' not in text
