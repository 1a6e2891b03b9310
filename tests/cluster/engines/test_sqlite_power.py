"""Power cuts: the disk forgets what was not synced, or keeps some sectors of it. Many seeds; more by `make faults`."""

from pathlib import Path

import pytest

from tests.cluster.engines.power import run_lives
from wharf.cluster.engines.port import LogUnavailable


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_at_any_operation_loses_no_acknowledged_write_and_keeps_no_partial_one(
    tmp_path: Path, seed: int
) -> None:
    tally = run_lives(tmp_path / "log", seed=seed, lives=8)

    assert tally.acknowledged > 0


STRUCK = (
    "unknown_that_happened",
    "unknown_that_did_not",
    "cut_while_opening",
    "trimmed",
    "restored",
    "unknown_restores_that_happened",
    "unknown_restores_that_did_not",
)


def test_power_cuts_strike_before_and_after_the_point_of_no_return(tmp_path: Path) -> None:
    # Where a cut strikes depends on when threads run, so seeds are added until each kind was met.
    cut_counts = dict.fromkeys(STRUCK, 0)
    for seed in range(1_000, 1_200):
        tally = run_lives(tmp_path / f"log{seed}", seed=seed, lives=8)
        cut_counts = {kind: cut_counts[kind] + getattr(tally, kind) for kind in STRUCK}
        if all(cut_counts.values()):
            break

    assert [kind for kind, times in cut_counts.items() if not times] == []


def test_the_test_detects_a_log_that_does_not_sync(tmp_path: Path) -> None:
    found_out = 0
    for seed in range(4):
        try:
            run_lives(tmp_path / f"log{seed}", seed=seed, lives=8, syncs_count=False)
        except (AssertionError, LogUnavailable):
            found_out += 1

    assert found_out > 0
