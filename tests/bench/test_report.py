"""Ratios are taken round by round, and a run reads as it was written."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import loads, report
from bench.contestants.table import CONTESTANTS
from bench.loads import Sizes
from bench.picture import draw
from bench.publish import BEGIN, END, PAGE, paragraphs
from bench.results import Results

BEST = report.Ratio("rate", ("ours", loads.RATE), ("one", "other"), loads.RATE)


@pytest.fixture
def results() -> Results:
    made = Results({"instances": 10}, "ordinary")
    made.rounds = [
        {"ours": {loads.RATE: 30.0}, "one": {loads.RATE: 10.0}, "other": {loads.RATE: 5.0}},
        {"ours": {loads.RATE: 60.0}, "one": {loads.RATE: 10.0}, "other": {loads.RATE: 20.0}},
        {"ours": {loads.RATE: 10.0}},
    ]
    return made


def test_a_ratio_compares_with_the_best_peer_of_each_round(results: Results) -> None:
    assert BEST.values(results) == [3.0, 3.0]  # of the third round there is nothing to compare with


def test_a_latency_compares_with_the_shortest() -> None:
    made = Results({}, "ordinary")
    made.rounds = [{"ours": {loads.ALONE: 4.0}, "one": {loads.ALONE: 8.0}, "other": {loads.ALONE: 5.0}}]
    shortest = report.Ratio("alone", ("ours", loads.ALONE), ("one", "other"), loads.ALONE, min)
    assert shortest.values(made) == [0.8]


def test_every_ratio_is_about_contestants() -> None:
    named = {name for ratio in report.RATIOS for name in (ratio.ours[0], *ratio.peers)}
    assert named <= set(CONTESTANTS)


def test_a_cell_is_the_median_and_how_far_the_rounds_lie_apart() -> None:
    assert report.cell([3.0, 1.0, 200.0]) == "3.00 (1.00 to 200)"
    assert report.cell([12.34]) == "12.3"
    assert report.cell([]) == "-"


def test_results_are_read_as_they_were_written(results: Results, tmp_path: Path) -> None:
    results.absent["other"] = "not installed"
    results.save(tmp_path / "run.json")
    assert Results.load(tmp_path / "run.json") == results


def test_a_slower_engine_gets_fewer_of_everything_but_as_many_in_flight() -> None:
    sizes = Sizes(
        instances=2000, in_flight=256, alone=200, sleepers=2000, signals=500, signals_alone=100, rest=30.0
    ).times(0.05)
    assert (sizes.instances, sizes.in_flight, sizes.sleepers) == (100, 256, 100)
    assert (sizes.alone, sizes.signals, sizes.signals_alone) == (20, 25, 20)  # fewer say nothing


def test_small_sizes_are_not_raised() -> None:
    small = Sizes(instances=5, in_flight=2, alone=5, sleepers=5, signals=5, signals_alone=1, rest=1.0)
    assert small.times(0.05) == small


def test_the_picture_is_valid_and_names_every_contestant(results: Results) -> None:
    texts = {element.text for element in ElementTree.fromstring(draw(results)).iter() if element.text}
    assert {"ours", "one", "other"} <= texts


def test_the_page_has_a_place_for_a_run(results: Results) -> None:
    results.absent["temporal-dev"] = "not installed"
    assert PAGE.read_text().count(BEGIN) == PAGE.read_text().count(END) == 1
    assert any("temporal-dev: not installed" in paragraph for paragraph in paragraphs(results))
