"""Power cuts: the disk forgets what was not synced, or keeps some sectors of it. Many seeds; more by `make faults`."""

from pathlib import Path

import pytest

from tests.engines.power import run_lives
from wharf.engines.port import Unavailable


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_at_any_operation_loses_nothing_acknowledged_and_keeps_nothing_half(
    tmp_path: Path, seed: int
) -> None:
    tally = run_lives(tmp_path / "log", seed=seed, lives=8)

    assert tally.acknowledged > 0


def test_power_cuts_strike_before_and_after_the_point_of_no_return(tmp_path: Path) -> None:
    tallies = [run_lives(tmp_path / f"log{seed}", seed=1_000 + seed, lives=8) for seed in range(6)]

    assert sum(tally.unknown_that_happened for tally in tallies) > 0
    assert sum(tally.unknown_that_did_not for tally in tallies) > 0
    assert sum(tally.cut_while_opening for tally in tallies) > 0
    assert sum(tally.trimmed for tally in tallies) > 0
    assert sum(tally.restored for tally in tallies) > 0
    assert sum(tally.unknown_restores_that_happened for tally in tallies) > 0
    assert sum(tally.unknown_restores_that_did_not for tally in tallies) > 0


def test_a_log_that_did_not_sync_would_be_found_out(tmp_path: Path) -> None:
    found_out = 0
    for seed in range(4):
        try:
            run_lives(tmp_path / f"log{seed}", seed=seed, lives=8, syncs_count=False)
        except (AssertionError, Unavailable):
            found_out += 1

    assert found_out > 0
