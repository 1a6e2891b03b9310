"""The store process killed under load, three hundred times."""

import asyncio
from pathlib import Path

import pytest

from tests.engines.killing import run_rounds


@pytest.mark.faults
def test_a_store_killed_three_hundred_times_loses_nothing_acknowledged_and_keeps_nothing_half(tmp_path: Path) -> None:
    tally = asyncio.run(run_rounds(tmp_path / "log", rounds=300, seed=2))

    assert tally.acknowledged > 3_000
    assert tally.unknown_that_happened > 0
    assert tally.unknown_that_did_not > 0
