"""Simulated power cuts of the SQLite log, with many seeds."""

from pathlib import Path

import pytest

from tests.cluster.engines.power_cuts import run_lives


@pytest.mark.faults
@pytest.mark.parametrize("block", range(10))
def test_a_power_cut_loses_no_acknowledged_write_and_leaves_no_partial_write(tmp_path: Path, block: int) -> None:
    tallies = [
        run_lives(tmp_path / f"log{seed}", seed=seed, lives=10)
        for seed in range(100_000 + block * 60, 100_060 + block * 60)
    ]

    for tally in tallies:
        print(tally)  # Shown by `make faults ARGS=-s`.
    assert sum(tally.restored for tally in tallies) > 0
    assert sum(tally.acknowledged for tally in tallies) > 1_000
    assert sum(tally.unknown_committed for tally in tallies) > 0
    assert sum(tally.unknown_not_committed for tally in tallies) > 0
