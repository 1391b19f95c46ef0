"""What all tests have in common that start processes."""

from __future__ import annotations

from pathlib import Path

import pytest

LIMIT = 180
"""Seconds after which a test hangs: a process takes many to start where others want the processors, too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test of this folder the time that its processes need to start."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(LIMIT))
