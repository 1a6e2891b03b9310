"""The store process killed under load, three hundred times: ten logs, thirty times each."""

import asyncio
from pathlib import Path

import pytest

from tests.cluster.engines.killing import run_rounds


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(10))
def test_a_store_killed_thirty_times_loses_nothing_acknowledged_and_keeps_nothing_half(
    tmp_path: Path, seed: int
) -> None:
    tally = asyncio.run(run_rounds(tmp_path / "log", rounds=30, seed=seed))

    print(tally)  # What `make faults ARGS=-s` tells.
    assert tally.acknowledged > 300
    assert tally.unknown_that_happened + tally.unknown_that_did_not > 0
