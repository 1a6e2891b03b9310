"""Periodic jobs: the record of the last launch, and the time of the next one. Does not know which children still run."""

import datetime
import heapq
from typing import Final

from wharf.contract.model.jobs.cron import load_zone, parse_cron
from wharf.contract.model.jobs.job import Periodic
from wharf.contract.model.record import Record

MAX_SCHEDULES: Final = 20
"""Limits the cron expressions of a job. The leader computes the next time of each one on its event loop, which takes up to a
millisecond for an expression that rarely matches."""


class PeriodicLaunch(Record):
    """The record of the last launch of a periodic job.

    A new leader reads it, so that it neither repeats nor misses a launch.
    """

    namespace: str
    id: str  # The ID of the periodic job.
    launch: datetime.datetime  # The due time of the launch.
    create_index: int = 0
    modify_index: int = 0


def list_cron_specs(periodic: Periodic) -> tuple[str, ...]:
    """Return the cron expressions of a periodic job: those of `specs`, or the one of the deprecated field `spec`."""
    return periodic.specs or ((periodic.spec,) if periodic.spec else ())


def list_used_specs(periodic: Periodic) -> tuple[str, ...]:
    """Return the cron expressions by which a periodic job is launched: the first `MAX_SCHEDULES`, without repetitions."""
    return tuple(dict.fromkeys(list_cron_specs(periodic)[:MAX_SCHEDULES]))


class LaunchTimes:
    """Computes the launch times of a periodic job one after the other.

    It keeps the next time of each schedule, so that a step computes only the schedules that it passes. Schedules beyond
    `MAX_SCHEDULES` are ignored: only a job that was stored before the limit existed has them. Times must not go back.
    """

    def __init__(self, periodic: Periodic, after: datetime.datetime) -> None:
        """Raises `CronError` if an expression or the time zone is invalid, which a validated job cannot have."""
        self._zone = load_zone(periodic.time_zone or "UTC")
        self._schedules = [parse_cron(spec) for spec in list_used_specs(periodic)]
        self._heap: list[tuple[datetime.datetime, int]] = []
        """Pairs (next time, position of the schedule). A schedule without a further time has none."""
        for position, schedule in enumerate(self._schedules):
            if (time := schedule.find_next_time(after, self._zone)) is not None:
                heapq.heappush(self._heap, (time, position))

    def find_next(self, after: datetime.datetime) -> datetime.datetime | None:
        """Return the first launch time (UTC) after `after`, or `None` if there is none."""
        while self._heap and self._heap[0][0] <= after:
            _, position = heapq.heappop(self._heap)
            if (time := self._schedules[position].find_next_time(after, self._zone)) is not None:
                heapq.heappush(self._heap, (time, position))
        return self._heap[0][0] if self._heap else None


def find_next_launch(periodic: Periodic, after: datetime.datetime) -> datetime.datetime | None:
    """Return the first launch time (UTC) of a periodic job after `after`, or `None` if there is none.

    Raises `CronError` if an expression or the time zone is invalid, which a validated job cannot have.
    """
    return LaunchTimes(periodic, after).find_next(after)
