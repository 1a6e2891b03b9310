"""Periodic launches: when a periodic job was launched last, so that a new leader neither repeats nor forgets one.

When a periodic job launches: the earliest of its cron expressions, in its time zone. Overlap is not known here.
"""

import datetime

from wharf.contract.model.jobs.cron import load_zone, parse_cron
from wharf.contract.model.jobs.job import Periodic
from wharf.contract.model.record import Record


class PeriodicLaunch(Record):
    namespace: str
    id: str  # of the job
    launch: datetime.datetime
    create_index: int = 0
    modify_index: int = 0


def list_cron_specs(periodic: Periodic) -> tuple[str, ...]:
    """The expressions, whichever form they were given in."""
    return periodic.specs or ((periodic.spec,) if periodic.spec else ())


def find_next_launch(periodic: Periodic, after: datetime.datetime) -> datetime.datetime | None:
    """The next instant (UTC) after that one, None where none is left; a CronError if the job was never validated."""
    zone = load_zone(periodic.time_zone or "UTC")
    times = [parse_cron(spec).find_next_time(after, zone) for spec in list_cron_specs(periodic)]
    return min((time for time in times if time is not None), default=None)
