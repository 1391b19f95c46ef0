"""Pages of documentation whose code is run: what stands between fences."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str, under: str = "") -> list[str]:
    """The blocks of a page in that language, from top to bottom; only those under a heading, if one is given."""
    text = (ROOT / page).read_text()
    if under:
        _, found, text = text.partition(f"\n## {under}\n")
        assert found, f"{page} has no heading {under!r}"
        text = text.partition("\n## ")[0]
    return [block for name, block in _BLOCK.findall(text) if name == language]
