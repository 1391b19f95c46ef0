"""The shape of whole packages: no modules that import each other, no classes that do everything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import grimp
import pytest

PACKAGES = ("stepwell", "stepwell_server")

GENERATED = {"v1", "migrations"}
MOST_METHODS = 20
LONGEST_CLASS = 250


def files(package: str) -> list[Path]:
    root = Path(str(import_module(package).__file__)).parent
    return [path for path in sorted(root.rglob("*.py")) if not GENERATED & {*path.parts}]


def classes(path: Path) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef))


def is_overload(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list)


def methods(cls: ast.ClassDef) -> list[str]:
    functions = [node for node in cls.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [function.name for function in functions if not is_overload(function)]


def imports_within(package: str) -> dict[str, set[str]]:
    """What each module of a package imports of it, also for types alone."""
    graph = grimp.build_graph(package, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    for module in graph.find_modules_that_directly_import(package):
        lines = [detail["line_contents"] for detail in graph.get_import_details(importer=module, imported=package)]
        if all(line.startswith(f"from {package}.") for line in lines):  # of a folder without a module: the stubs
            imports[module].discard(package)
    return imports


def cyclic(imports: dict[str, set[str]]) -> set[str]:
    """The modules on a cycle, and those between two of them: what is left when all others are taken off both ends."""
    left = set(imports)
    while ends := {
        module
        for module in left
        if not imports[module] & left or not any(module in imports[importer] for importer in left)
    }:
        left -= ends
    return left


def test_cycles_are_found_and_nothing_else() -> None:
    imports = {"app": {"a"}, "a": {"b", "leaf"}, "b": {"c"}, "c": {"a"}, "leaf": set[str]()}

    assert cyclic(imports) == {"a", "b", "c"}
    assert cyclic({**imports, "c": {"leaf"}}) == set()


def test_the_server_takes_the_stubs_alone() -> None:
    graph = grimp.build_graph("stepwell_server", include_external_packages=True, cache_dir=None)
    for importer in graph.find_modules_that_directly_import("stepwell"):
        for detail in graph.get_import_details(importer=importer, imported="stepwell"):
            assert detail["line_contents"].startswith("from stepwell.v1"), f"{importer} takes more than stubs"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_modules_import_each_other(package: str) -> None:
    assert cyclic(imports_within(package)) == set(), "let the lower module say what it needs in a protocol of its own"


@pytest.mark.parametrize("path", [path for package in PACKAGES for path in files(package)], ids=str)
def test_classes_are_small(path: Path) -> None:
    for cls in classes(path):
        assert cls.end_lineno is not None
        length = cls.end_lineno - cls.lineno + 1
        assert length <= LONGEST_CLASS, f"{cls.name} has {length} lines: split it by what it is about"
        number = len(methods(cls))
        assert number <= MOST_METHODS, f"{cls.name} has {number} methods: split it by what it is about"
