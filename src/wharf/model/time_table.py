"""When a periodic job launches: the earliest of its cron expressions, in its time zone. Overlap is not known here."""

import datetime

from wharf.model.cron import load_zone, parse_cron
from wharf.model.job import Periodic


def cron_specs(periodic: Periodic) -> tuple[str, ...]:
    """The expressions, whichever form they were given in."""
    return periodic.specs or ((periodic.spec,) if periodic.spec else ())


def next_launch(periodic: Periodic, after: datetime.datetime) -> datetime.datetime | None:
    """The next instant (UTC) after that one, None where none is left; a CronError if the job was never validated."""
    zone = load_zone(periodic.time_zone or "UTC")
    times = [parse_cron(spec).next_after(after, zone) for spec in cron_specs(periodic)]
    return min((time for time in times if time is not None), default=None)
