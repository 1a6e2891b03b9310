"""The store process is killed 300 times under load: 30 times for each of ten logs."""

import asyncio
from pathlib import Path

import pytest

from tests.cluster.engines.kill_rounds import run_rounds


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(10))
def test_30_kills_of_the_store_lose_no_acknowledged_write_and_leave_no_partial_write(tmp_path: Path, seed: int) -> None:
    tally = asyncio.run(run_rounds(tmp_path / "log", rounds=30, seed=seed))

    print(tally)  # Shown by `make faults ARGS=-s`.
    assert tally.acknowledged > 300
    assert tally.unknown_committed + tally.unknown_not_committed > 0
