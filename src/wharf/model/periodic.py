"""Periodic launches: when a periodic job was launched last, so that a new leader neither repeats nor forgets one."""

import datetime

from wharf.model.record import Record


class PeriodicLaunch(Record):
    namespace: str
    id: str  # of the job
    launch: datetime.datetime
    create_index: int = 0
    modify_index: int = 0
