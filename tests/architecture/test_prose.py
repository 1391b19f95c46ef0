"""The house rules of prose: the subject of a sentence is a noun of the glossary, and links lead somewhere."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "clients/*.md", "clients/*/*.md", "examples/*.md", "server/*.md")
    for path in ROOT.glob(pattern)
)
PLAIN = sorted(
    path
    for pattern in (
        *("README.md", "CONTRIBUTING.md", "docs/**/*.md", "tests/README.md", "proto/**/*.proto"),
        *("server/stepwell_server/**/*.py", "clients/python/stepwell/**/*.py"),
    )
    for path in ROOT.glob(pattern)
    if path.parent.name not in ("v1", "versions") or path.suffix == ".proto"  # generated, or as it was released
)
NOT_YET = (
    *("engine/spine/books.py", "engine/spine/calls.py", "engine/spine/committer.py", "engine/spine/group.py"),
    *("engine/spine/inbox.py", "engine/workflows/", "storage/spine/", "storage/workflows/"),
)
"""Parts of the server whose docstrings are not plain yet."""

UNNAMED = re.compile(r"\b(?:who(?:m|so)?ever|(?:some|no|any|every)(?:body|one)|no one(?!-))\b", re.IGNORECASE)
HEADLESS = re.compile(
    r"(?:(?:^|(?<=[.!?] ))(?:Who|What|Whatever|One (?:that|which|who))|(?<=[:;] )who)\b[^.?]*(?:[.;:!]|$)"
)

_FENCED = re.compile(r"^ *```.*?^ *```$|<!--.*?-->", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
_BLOCK_STARTS = re.compile(r"\n(?=\s*(?:[-*]|\d+\.) |\|)|\|\s*|\n\s*\n")


def prose(text: str, suffix: str) -> list[str]:
    """The paragraphs, items and cells of a page, or of what is prose in a source; each as one line without code."""
    if suffix == ".proto":
        text = "\n".join(line.partition("//")[2] for line in text.splitlines())
    if suffix == ".py":
        text = "\n\n".join([*_docstrings(text), *_comments(text)])
    text = _CODE.sub("X", _HEADING.sub("", _FENCED.sub("\n\n", text)))
    return [" ".join(part.split()).strip("-* ") for part in _BLOCK_STARTS.split(text)]


def _docstrings(text: str) -> list[str]:
    """The texts of a module that stand alone, of which no variable is made."""
    found = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    return [one.value for one in found if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def _comments(text: str) -> list[str]:
    """The comments of a module; those on lines that follow each other are one."""
    found: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            found[line] = f"{found.pop(line - 1, '')} {token.string.lstrip('# ')}"
    return list(found.values())


def offences(text: str, suffix: str = ".md") -> list[str]:
    """The words of a text that hide the subject, and its sentences without a noun as their subject."""
    parts = prose(text, suffix)
    return [found.group() for part in parts for rule in (UNNAMED, HEADLESS) for found in rule.finditer(part)]


def anchors(text: str) -> set[str]:
    """The anchors that the headings of a page make."""
    headings = _HEADING.findall(_FENCED.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "text",
    [
        "Who lost its lease changes nothing.",
        "The server drains; who leaves does so in time.",
        "What is done is not done again.",
        "It restarts. Whatever comes meanwhile is one further pass.",
        "- One that dies is missed.",
        "| `pending` | waits for somebody to take it |",
        "A hook whose name nobody\nhosts waits.",
    ],
)
def test_a_hidden_subject_is_found(text: str) -> None:
    assert offences(text)


@pytest.mark.parametrize(
    "text",
    [
        "A worker that lost its lease changes nothing.",
        "What happens to a lost lease? It expires.",
        "It is for teams that debug with a terminal and for users who read logs.",
        "One row per pipeline. No one-implementation interfaces.",
        "## Who is let in\n\nCallers with a token.",
        "```python\nraise Refused('nobody to send it to')\n```",
        "Set `whoever` to an address.",
        "| what | limit |\n|---|---|\n| name | 64 characters |",
    ],
)
def test_plain_prose_is_let_through(text: str) -> None:
    assert not offences(text)


def test_of_a_proto_file_only_comments_are_prose() -> None:
    assert offences("string who = 1;  // Somebody executes it.", ".proto") == ["Somebody"]


def test_of_a_module_docstrings_and_comments_are_prose() -> None:
    module = 'who = "nobody"  # and whoever\n# comes\ndef f():\n    """What it does.\n\n    Somebody calls it.\n    """'

    assert offences(module, ".py") == ["What it does.", "Somebody", "whoever"]


@pytest.mark.parametrize("part", NOT_YET)
def test_a_part_that_is_plain_by_now_is_no_exception(part: str) -> None:
    late = [path for path in PLAIN if part in str(path)]

    assert any(offences(path.read_text(), path.suffix) for path in late), f"{part} is plain: take it off the list"


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_subject_is_a_noun_of_the_glossary(path: Path) -> None:
    is_late = any(part in str(path) for part in NOT_YET)
    found = offences(path.read_text(), path.suffix)
    assert is_late or not found, f"say worker, replica, caller, lease: {found}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(path: Path) -> None:
    for link in _LINK.findall(_FENCED.sub("", path.read_text())):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target.read_text()), f"{link} leads to no heading"
