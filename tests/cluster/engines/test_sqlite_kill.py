"""The store process is killed repeatedly under load. `make faults` runs 300 rounds."""

from pathlib import Path

from tests.cluster.engines.kill_rounds import run_rounds


async def test_a_store_killed_under_load_loses_no_acknowledged_write_and_keeps_no_partial_one(tmp_path: Path) -> None:
    tally = await run_rounds(tmp_path / "log", rounds=12, seed=1)

    assert tally.acknowledged > 100
    assert tally.unknown_committed + tally.unknown_not_committed > 0
