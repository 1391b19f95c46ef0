"""Write a run of `make bench-peers` into the documentation: tables into docs/performance.md, the picture beside it.

python -m bench.publish RESULTS
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from bench import report
from bench.picture import draw
from bench.processes import ROOT
from bench.results import Results

PAGE = ROOT / "docs" / "performance.md"
PICTURE = PAGE.with_suffix(".svg")
BEGIN = "<!-- written by `make bench-publish`: begin -->\n"
END = "<!-- written by `make bench-publish`: end -->\n"


def main(path: Path) -> None:
    """Replace what stands between the two marks, and the picture."""
    results = Results.load(path)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + "\n" + "\n\n".join(paragraphs(results)) + "\n\n" + END + after)
    PICTURE.write_text(draw(results))
    print(f"wrote {PAGE.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}")


def paragraphs(results: Results) -> Iterator[str]:
    """What was measured, on what, and how."""
    sizes = ", ".join(f"{name.replace('_', ' ')} {size:g}" for name, size in results.sizes.items())
    yield f"Measured {results.at[:10]}, {len(results.rounds)} interleaved round(s). {results.machine}."
    yield f"Scheduling class: {results.scheduling}."
    yield f"Sizes: {sizes}." + (f" PostgreSQL is {results.delay_ms:g} ms away, each way." if results.delay_ms else "")
    yield f"![Figures of every contestant]({PICTURE.name})"
    for table in report.tables(results):
        yield table.markdown()
    yield "Contestants and their storage:\n\n" + contestants(results)
    yield "\n".join(f"- {settings}" for settings in results.products.values())
    if results.absent:
        yield "**Did not run:**\n\n" + "\n".join(f"- {name}: {reason}" for name, reason in results.absent.items())


def contestants(results: Results) -> str:
    """Who took part, and with which settings."""
    lines = []
    for name, title in results.titles.items():
        share = results.shares[name]
        fewer = f", {share:.0%} of the sizes" if share < 1 else ""
        lines.append(f"- {name}: {title}{fewer}; {results.settings[name]}")
    return "\n".join(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
