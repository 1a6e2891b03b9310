"""The store process is killed under load, again and again. (300 rounds: `make faults`.)"""

from pathlib import Path

from tests.cluster.engines.killing import run_rounds


async def test_a_store_killed_under_load_loses_no_acknowledged_write_and_keeps_no_partial_one(tmp_path: Path) -> None:
    tally = await run_rounds(tmp_path / "log", rounds=12, seed=1)

    assert tally.acknowledged > 100
    assert tally.unknown_that_happened + tally.unknown_that_did_not > 0
