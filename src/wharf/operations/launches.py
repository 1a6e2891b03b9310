"""When a periodic job is launched next: read from its time tables, from an instant that is given."""

import datetime
from collections.abc import Iterator
from itertools import islice
from typing import Final

from wharf.model.cron import CronError, load_zone, next_after
from wharf.model.job import Job, Periodic

DEFAULT_ZONE: Final = "UTC"


def next_launches(job: Job, after: datetime.datetime, *, at_most: int) -> list[datetime.datetime]:
    """The launches that come next, in the job's own time zone; none of a job that launches nothing."""
    periodic = job.periodic
    if periodic is None or not job.is_active_periodic:
        return []
    return list(islice(_launches(periodic, after), at_most))


def _launches(periodic: Periodic, after: datetime.datetime) -> Iterator[datetime.datetime]:
    specs = periodic.specs or ((periodic.spec,) if periodic.spec else ())
    try:
        zone = load_zone(periodic.time_zone or DEFAULT_ZONE)
        while found := [time for spec in specs if (time := next_after(spec, after, zone)) is not None]:
            after = min(found)
            yield after.astimezone(zone)
    except CronError:
        return  # A time table that cannot be read launches nothing; validation has told why.
