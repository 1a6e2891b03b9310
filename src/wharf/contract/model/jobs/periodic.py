"""Periodic jobs: the record of the last launch, and the time of the next one. Does not know which children still run."""

import datetime

from wharf.contract.model.jobs.cron import load_zone, parse_cron
from wharf.contract.model.jobs.job import Periodic
from wharf.contract.model.record import Record


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


def find_next_launch(periodic: Periodic, after: datetime.datetime) -> datetime.datetime | None:
    """Return the first launch time (UTC) of a periodic job after `after`, or `None` if there is none.

    Raises `CronError` if an expression or the time zone is invalid, which a validated job cannot have.
    """
    zone = load_zone(periodic.time_zone or "UTC")
    times = [parse_cron(spec).find_next_time(after, zone) for spec in list_cron_specs(periodic)]
    return min((time for time in times if time is not None), default=None)
