"""The house rules of prose: the subject of a sentence is a noun of the glossary, and links lead somewhere."""

from __future__ import annotations

import re
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
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "proto/**/*.proto")
    for path in ROOT.glob(pattern)
    if path.suffix != ".proto"  # their comments are not plain yet
)

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
    """The paragraphs, items and cells of a page, or the comments of a proto file; each as one line without code."""
    if suffix == ".proto":
        text = "\n".join(line.partition("//")[2] for line in text.splitlines())
    text = _CODE.sub("X", _HEADING.sub("", _FENCED.sub("\n\n", text)))
    return [" ".join(part.split()).strip("-* ") for part in _BLOCK_STARTS.split(text)]


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


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_subject_is_a_noun_of_the_glossary(path: Path) -> None:
    found = offences(path.read_text(), path.suffix)
    assert not found, f"say worker, replica, caller, lease: {found}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(path: Path) -> None:
    for link in _LINK.findall(_FENCED.sub("", path.read_text())):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target.read_text()), f"{link} leads to no heading"
