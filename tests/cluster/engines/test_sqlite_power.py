"""Power cuts: the disk loses all or some sectors of unsynced data. `make faults` runs more seeds."""

from pathlib import Path

import pytest

from tests.cluster.engines.power_cuts import run_lives
from wharf.cluster.engines.port import LogUnavailable


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_at_any_operation_loses_no_acknowledged_write_and_keeps_no_partial_one(
    tmp_path: Path, seed: int
) -> None:
    tally = run_lives(tmp_path / "log", seed=seed, lives=8)

    assert tally.acknowledged > 0


SITUATIONS = (
    "unknown_committed",
    "unknown_not_committed",
    "cut_while_opening",
    "trimmed",
    "restored",
    "unknown_restores_committed",
    "unknown_restores_not_committed",
)


def test_power_cuts_happen_in_every_situation_with_some_seed(tmp_path: Path) -> None:
    # Thread scheduling decides where a cut happens. So run more seeds until each situation has occurred.
    counts = dict.fromkeys(SITUATIONS, 0)
    for seed in range(1_000, 1_200):
        tally = run_lives(tmp_path / f"log{seed}", seed=seed, lives=8)
        counts = {kind: counts[kind] + getattr(tally, kind) for kind in SITUATIONS}
        if all(counts.values()):
            break

    assert [kind for kind, count in counts.items() if not count] == []


def test_the_test_detects_a_log_that_does_not_sync(tmp_path: Path) -> None:
    detected_count = 0
    for seed in range(4):
        try:
            run_lives(tmp_path / f"log{seed}", seed=seed, lives=8, has_syncs=False)
        except (AssertionError, LogUnavailable):
            detected_count += 1

    assert detected_count > 0
