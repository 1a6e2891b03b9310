"""Which warnings of a store are logged, and how often."""

import logging
from collections.abc import Sequence

import pytest

from tests.kit.virtual_time import in_virtual_time, now_s, pass_time
from wharf.cluster.engines.memory.engine import MemoryEngine
from wharf.cluster.engines.port import LogHealth
from wharf.cluster.server.log.store_warnings import REPEAT_INTERVAL_S, StoreWarnings
from wharf.world import SimulatedWorld

LOST = LogHealth(writable=True, why="a member is lost")
HEALTHY = LogHealth(writable=True)


class ControlledHealth(MemoryEngine):
    """A log whose health the test sets."""

    def __init__(self) -> None:
        self.health = HEALTHY

    async def read_health(self) -> LogHealth:
        return self.health


def log_warnings(caplog: pytest.LogCaptureFixture, steps: Sequence[tuple[LogHealth, float]]) -> list[logging.LogRecord]:
    """Return what is logged while the log has each health for a time in seconds, after one check at its begin."""

    @in_virtual_time
    async def run() -> None:
        engine = ControlledHealth()
        warnings = StoreWarnings(SimulatedWorld(7, now_s), engine)
        for health, later_s in steps:
            engine.health = health
            await warnings.check()
            await pass_time(later_s)

    with caplog.at_level(logging.INFO, logger="wharf.cluster.server.log.store_warnings"):
        run()
    return caplog.records


def test_a_warning_whose_text_changes_is_logged_every_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    shrinking = [(LogHealth(writable=True, why=f"{free} MB free"), 10.0) for free in range(100)]

    records = log_warnings(caplog, shrinking)

    assert [vars(record)["why"] for record in records] == ["0 MB free", "60 MB free"]


def test_a_warning_is_logged_when_it_begins_daily_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    records = log_warnings(caplog, [(HEALTHY, 10), (LOST, 10), (LOST, REPEAT_INTERVAL_S), (LOST, 10), (HEALTHY, 10)])

    assert [(record.levelname, record.getMessage()) for record in records] == [
        ("WARNING", "store has a problem"),
        ("WARNING", "store has a problem"),
        ("INFO", "store has no problem any more"),
    ]


def test_a_store_that_accepts_no_writes_is_not_logged_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def run() -> None:
        engine = ControlledHealth()
        engine.health = LogHealth(writable=False, why="full")
        await StoreWarnings(SimulatedWorld(7, now_s), engine).check()

    run()

    assert not caplog.records
