"""Writes the records that a cluster begins with, wherever the log has none.

A log is empty when it is new, and again when its store was wiped. Either way somebody has to found it: each server before
it is ready, because an election needs a founded log, and each leader before it leads. It never overwrites a founding.
"""

import logging
from typing import Any, Final

import msgspec

from wharf.engines.port import Committed
from wharf.model.changes import THIS, Cause, CauseKind, Condition, Write
from wharf.model.founding import founding_records
from wharf.model.scheduler_configuration import SchedulerConfiguration
from wharf.server.follower import Follower
from wharf.server.writer import Writer
from wharf.state import Table
from wharf.state.formats import NEWEST_FORMAT
from wharf.state.tables import FORMAT, NAMESPACES, NODE_POOLS, SCHEDULER_CONFIGURATION

log = logging.getLogger(__name__)

FOUNDED_TABLES: Final = (NAMESPACES, NODE_POOLS, SCHEDULER_CONFIGURATION, FORMAT)


class Founder:
    def __init__(self, follower: Follower, writer: Writer, *, scheduler: SchedulerConfiguration | None = None) -> None:
        """`scheduler`: the configuration that scheduling begins with; without one, that of every new cluster."""
        self._follower = follower
        self._writer = writer
        self._scheduler = scheduler

    async def found(self) -> None:
        """Found the cluster, where nobody has yet. Every server may try; one does. Raises Refusal."""
        await self._follower.loaded.wait()
        # Members put records of themselves into the log too: an index alone does not say that it was founded.
        if self._follower.replica.get(FORMAT) is not None:
            return
        tables: dict[type, Table[Any]] = {table.record: table for table in FOUNDED_TABLES}
        records = [
            msgspec.structs.replace(record, create_index=THIS)
            for record in founding_records(self._scheduler, cluster_format=NEWEST_FORMAT)
        ]
        changes = [tables[type(record)].put(record) for record in records]
        condition = Condition(FORMAT.name, FORMAT.name, 0)
        write = Write("founded", Cause(CauseKind.FOUNDING), changes, [condition])
        outcome = await self._writer.commit(write)
        if isinstance(outcome, Committed):
            log.info("a new cluster was founded")
            await self._follower.reached(outcome.index)
        else:
            await self._writer.catch_up()
