"""What a leader has before it: queues and marks, filled from the state by a new leader and from every batch after that.

It only looks and remembers. What is done about it, and in which order, is decided by `thinking`.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from wharf.controllers.blocked import Blocked
from wharf.controllers.broker import Broker
from wharf.engines.port import Batch
from wharf.model.allocation import Allocation
from wharf.model.cluster import Member
from wharf.model.deployment import Deployment
from wharf.model.evaluation import Evaluation, EvaluationStatus
from wharf.model.job import Job
from wharf.model.namespace import Namespace
from wharf.model.node import Node
from wharf.model.node_pool import NodePool
from wharf.model.quota import Quota
from wharf.model.scheduler_configuration import SchedulerConfiguration
from wharf.operations.derived import JobKey
from wharf.server.follower import Follower
from wharf.server.leading.ground_keeper import GroundKeeper
from wharf.server.leading.node_care import NodeCare
from wharf.server.leading.term import Term
from wharf.state.replica import Taken
from wharf.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_ON_NODE,
    DEPLOYMENTS,
    EVALUATIONS,
    EVALUATIONS_BY_STATUS,
    JOBS,
    MEMBERS,
    NAMESPACES,
    NODE_POOLS,
    NODES,
    QUOTAS,
    SCHEDULER_CONFIGURATION,
)


class Agenda:
    """`woken` is set whenever there may be something new to do."""

    def __init__(self, follower: Follower, term: Term, nodes: NodeCare) -> None:
        self._follower = follower
        self._term = term
        self._nodes = nodes
        self.keeper = GroundKeeper(follower)
        self.woken = asyncio.Event()
        self.broker = Broker()
        self.blocked = Blocked()
        self.unsettled: dict[JobKey, None] = {}
        """Jobs whose status and summary are to be made true."""
        self.nodes_changed: dict[str, None] = {}
        """Nodes of which not all jobs may have been looked at."""
        self.have_members_changed = True
        follower.takers.append(self._hear)
        follower.on_load.append(self._on_load)

    def rebuild(self) -> None:
        """Queues and timers from the state: a new leader knows nothing else. What was heard of nodes stays."""
        replica = self._follower.replica
        self.broker, self.blocked = Broker(), Blocked()
        self.keeper.take_freed()
        for evaluation in replica.those_by_key(EVALUATIONS_BY_STATUS, EvaluationStatus.PENDING):
            self.broker.hear(evaluation)
        for evaluation in replica.those_by_key(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED):
            self.blocked.hear(evaluation)
        self.keeper.ground.hear_of_all_that_wait(replica)
        self.blocked.try_all()  # Nobody knows what came free before.
        self._nodes.expect_all()
        self.unsettled = {(job.namespace, job.id): None for job in replica.all(JOBS)}
        # Nodes that are gone too, where something still counts as running on them.
        self.nodes_changed = {node.id: None for node in replica.all(NODES)}
        self.nodes_changed |= {str(node_id): None for node_id in replica.values_of(ALLOCATIONS_ON_NODE)}
        self.have_members_changed = True
        self.woken.set()

    def _on_load(self) -> None:
        if self._term.leadership is not None:
            self.rebuild()

    def _hear(self, batch: Batch, taken: Sequence[Taken]) -> None:
        """Take note of what a batch changed. Called for every batch, so it only looks and remembers."""
        if self._term.leadership is None:
            return
        self.blocked.room_came(self.keeper.take_freed(), batch.index)
        for table, key, _, record in taken:
            if table not in HEARD:
                continue
            match record:
                case Allocation():
                    self.unsettled[record.namespace, record.job_id] = None
                case Evaluation():
                    self.broker.hear(record)
                    self.blocked.hear(record)
                    self.keeper.ground.hear_of_waiting(self._follower.replica, key, record)
                    self.unsettled[record.namespace, record.job_id] = None
                case Node():
                    self.nodes_changed[record.id] = None
                case SchedulerConfiguration() | NodePool() | Namespace() | Quota():
                    self.blocked.try_all()
                case Job():
                    self.unsettled[record.namespace, record.id] = None
                    if record.parent_id or record.is_periodic or record.is_parameterized:
                        self.blocked.turn_came(record.namespace, record.parent_id or record.id, batch.index)
                case Deployment():
                    self.unsettled[record.namespace, record.job_id] = None
                case None if table == EVALUATIONS.name:
                    self.broker.forget(key)
                    self.blocked.forget(key)
                    self.keeper.ground.hear_of_waiting(self._follower.replica, key, None)
                case None if table == JOBS.name:
                    self.blocked.try_all()  # Perhaps somebody waited behind it.
                case None if table == NODES.name:
                    self._nodes.forget(key)
                    self.nodes_changed[key] = None  # Perhaps not all of its jobs were looked at.
                case None | Member():
                    self.have_members_changed = self.have_members_changed or table == MEMBERS.name
                case _:
                    pass
        self.woken.set()


HEARD: Final = frozenset({
    MEMBERS.name, EVALUATIONS.name, NODES.name, ALLOCATIONS.name, JOBS.name, DEPLOYMENTS.name,
    SCHEDULER_CONFIGURATION.name, NODE_POOLS.name, NAMESPACES.name, QUOTAS.name,
})  # fmt: skip
