"""Writes the first records of a cluster if the log has none.

A log is empty if it is new or its store was wiped. Each server bootstraps before it is ready, because an election
needs these records; each leader does so at the start of its term. Existing records are never overwritten.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from wharf.cluster.engines.port import Committed
from wharf.cluster.server.log.follower import Follower
from wharf.cluster.server.log.writer import Writer
from wharf.cluster.state import Table
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import CLUSTER_FORMAT, NAMESPACES, NODE_POOLS, SCHEDULER_CONFIGURATION
from wharf.contract.model.cluster import list_bootstrap_records
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, Write
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration

log = logging.getLogger(__name__)

BOOTSTRAP_TABLES: Final = (NAMESPACES, NODE_POOLS, SCHEDULER_CONFIGURATION, CLUSTER_FORMAT)
"""The tables of the first records."""


class ClusterBootstrap:
    """Writes the first records of a cluster, such as its default namespace."""

    def __init__(
        self,
        follower: Follower,
        writer: Writer,
        *,
        scheduler: SchedulerConfiguration | None = None,
        new_id: Callable[[], str] = lambda: "",
    ) -> None:
        """`scheduler`: the first scheduler configuration; `None` for the default one. `new_id` makes the cluster's id."""
        self.check_permission: Callable[[], None] = lambda: None
        """Called before the first records are written. Raises if this server may not begin a cluster."""
        self._new_id = new_id
        self._follower = follower
        self._writer = writer
        self._scheduler = scheduler

    def is_bootstrapped(self) -> bool:
        """Return whether the loaded log has the first records of a cluster."""
        # The log index is no evidence: members write their own records before.
        return self._follower.replica.get(CLUSTER_FORMAT) is not None

    async def bootstrap(self) -> None:
        """Write the first records of the cluster, unless they exist. All servers may try at the same time; one
        succeeds.

        Raises `Refusal` if the log cannot be written, and what `check_permission` raises.
        """
        await self._follower.loaded_event.wait()
        if self.is_bootstrapped():
            return
        self.check_permission()
        tables: dict[type, Table[Any]] = {table.record_type: table for table in BOOTSTRAP_TABLES}
        records = [
            msgspec.structs.replace(record, create_index=WRITE_INDEX)
            for record in list_bootstrap_records(
                self._scheduler, cluster_format=NEWEST_FORMAT, cluster_id=self._new_id()
            )
        ]
        changes = [tables[type(record)].build_put(record) for record in records]
        condition = Condition(CLUSTER_FORMAT.name, CLUSTER_FORMAT.name, 0)
        write = Write("founded", Cause(CauseKind.BOOTSTRAP), changes, [condition])
        outcome = await self._writer.commit(write)
        if isinstance(outcome, Committed):
            log.info("bootstrapped cluster")
            await self._follower.wait_until_applied(outcome.index)
        else:
            await self._writer.catch_up()

    async def add_cluster_id(self) -> None:
        """Give the cluster an id, if an older version has begun it. Raises `Refusal` if the log cannot be written."""
        stored = self._follower.replica.get(CLUSTER_FORMAT)
        cluster_id = self._new_id()
        if stored is None or stored.cluster_id or not cluster_id:
            return
        change = CLUSTER_FORMAT.build_put(msgspec.structs.replace(stored, cluster_id=cluster_id))
        condition = Condition(CLUSTER_FORMAT.name, CLUSTER_FORMAT.name, stored.modify_index)
        await self._writer.commit(Write("named", Cause(CauseKind.BOOTSTRAP), [change], [condition]))
        await self._writer.catch_up()
