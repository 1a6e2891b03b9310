"""A state without servers: decisions are committed to a real log at once, and the replica follows."""

from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from wharf.cluster.engines.memory.log import MemoryLog
from wharf.cluster.engines.port import Committed, WriteLimits, WriteOutcome
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.derived_state import add_derived_changes
from wharf.cluster.operations.jobs import registration
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.scheduling.scheduler import plan_evaluation
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALL_TABLES,
    ALLOCATIONS,
    ARRAY_ATTEMPTS,
    ARRAY_RESULTS,
    CLUSTER_FORMAT,
    EVALUATIONS,
    JOB_SUBMISSIONS,
    JOB_SUMMARIES,
    JOB_VERSIONS,
    JOBS,
    NAMESPACES,
    NODE_POOLS,
    NODES,
    PERIODIC_LAUNCHES,
    SCALING_EVENTS,
    SCALING_POLICIES,
    SCHEDULER_CONFIGURATION,
    STEP_OUTPUTS,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.cluster import list_bootstrap_records
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, DeleteRecord, EncodedWrite, PutRecord, Write
from wharf.contract.model.nodes.node import Node, NodeStatus
from wharf.contract.model.nodes.resources import NodeCpu, NodeDisk, NodeMemory, NodeResources
from wharf.contract.model.secrets import hash_secret
from wharf.contract.model.times import DecisionContext
from wharf.world import SimulatedWorld

T = TypeVar("T")

SETTINGS = JobSettings(
    node_pool="default",
    region="north",
    default_priority=45,
    max_priority=90,
    max_count=40_000,
    memory_oversubscription=True,
    max_source_bytes=900_000,
    versions_kept=5,
)
"""Settings of jobs, each unlike its default: an operation that does not pass a setting on fails its tests. Only the node pool
has its default, because a pool must exist."""
SECOND_NS = 1_000_000_000
CAUSE = Cause(CauseKind.REQUEST, "test")
SECRET = "a secret of a node"


class Refused(Exception):
    """The log rejected the write."""


class AState:
    """The log of a bootstrapped cluster and its replica. The test sets the clock `now_ns`."""

    def __init__(self, *, limits: WriteLimits | None = None) -> None:
        self.world = SimulatedWorld(7)
        self.log = MemoryLog(self.world, limits=limits)
        self.replica = Replica(ALL_TABLES)
        self.now_ns = self.world.now_ns()
        tables: dict[type, Any] = {
            t.record_type: t for t in (NAMESPACES, NODE_POOLS, SCHEDULER_CONFIGURATION, CLUSTER_FORMAT)
        }
        self.put(*(tables[type(r)].build_put(replace(r, create_index=WRITE_INDEX)) for r in list_bootstrap_records()))

    @property
    def moment(self) -> DecisionContext:
        return DecisionContext(self.now_ns, self.world.new_id)

    def try_commit(self, write: Write) -> WriteOutcome:
        encoded = self.replica.encode_write(write, write_id=self.world.new_id())
        msgspec.convert(msgspec.to_builtins(encoded), EncodedWrite)  # Logs that decode writes check the types.
        outcome = self.log.commit(encoded)
        if isinstance(outcome, Committed):
            batch = self.log.find_next_batch(self.replica.index, self.log.epoch)
            assert batch is not None, "the log has what it has just committed"
            self.replica.apply_batch(batch)
        return outcome

    def commit(self, write: Write) -> int:
        outcome = self.try_commit(write)
        if not isinstance(outcome, Committed):
            raise Refused(str(outcome))
        return outcome.index

    def put(self, *changes: Any) -> int:
        return self.commit(Write("test", CAUSE, changes))

    def do(self, decision: Decision[T]) -> T:
        """Commit a decision without the leader's follow-up changes."""
        if decision.write is None:
            return decision.build_reply(self.replica.index)
        self.assert_guarded(decision.write)
        return decision.build_reply(self.commit(decision.write))

    def lead(self, decision: Decision[T]) -> T:
        """Commit a decision with its follow-up changes, as the leader does."""
        if decision.write is None:
            return decision.build_reply(self.replica.index)
        self.assert_guarded(decision.write)
        return decision.build_reply(self.commit(add_derived_changes(self.replica, decision.write)))

    def assert_guarded(self, write: Write) -> None:
        """Assert that the write has a condition for each record that it replaces or deletes.

        A condition for a job covers its versions too, and deletions of its other records, because each change of them
        writes the job or has a condition for it.
        """
        conditions = {(condition.table, condition.key) for condition in write.conditions}
        has_job_condition = any(condition.table == JOBS.name for condition in write.conditions)
        unguarded = [
            f"{change.table} {change.key!r}"
            for change in write.changes
            if (change.table, change.key) not in conditions
            and not (has_job_condition and _is_covered_by_job(change))
            and self.replica.get_table_records(self.replica.tables[change.table]).records.get(change.key) is not None
        ]
        assert not unguarded, f"{write.kind} replaces records without a condition: {unguarded}"

    # -- records by id, and common steps

    def register(self, job: Job, **options: Any) -> registration.JobWriteResult:
        return self.do(
            registration.register_job(
                self.replica, registration.JobRegistration(job=job, **options), self.moment, SETTINGS
            )
        )

    def job(self, job_id: str = "shop", namespace: str = "default") -> Job:
        job = self.replica.get(JOBS, namespace, job_id)
        assert job is not None, f"no job {job_id}"
        return job

    def node(self, node_id: str = "node-1") -> Node:
        node = self.replica.get(NODES, node_id)
        assert node is not None, f"no node {node_id}"
        return node

    def allocation(self, allocation_id: str) -> Allocation:
        allocation = self.replica.get(ALLOCATIONS, allocation_id)
        assert allocation is not None, f"no allocation {allocation_id}"
        return allocation

    def evaluations(self, job_id: str = "shop") -> list[Evaluation]:
        return [evaluation for evaluation in self.replica.iter_all(EVALUATIONS) if evaluation.job_id == job_id]

    def open_evaluations(self, job_id: str = "shop") -> list[Evaluation]:
        return [evaluation for evaluation in self.evaluations(job_id) if not evaluation.status.is_terminal]

    def summary(self, job_id: str = "shop") -> Any:
        return self.replica.get(JOB_SUMMARIES, "default", job_id)

    def put_led(self, *changes: Any) -> int:
        """Commit changes with their follow-up changes."""
        return self.commit(add_derived_changes(self.replica, Write("test", CAUSE, changes)))

    def with_allocation(self, job: Job, allocation_id: str = "a1", **fields: Any) -> Allocation:
        self.put_led(ALLOCATIONS.build_put(an_allocation(job, allocation_id, **fields)))
        return self.allocation(allocation_id)

    def with_client_status(self, allocation_id: str, status: ClientStatus) -> None:
        self.put_led(ALLOCATIONS.build_put(replace(self.allocation(allocation_id), client_status=status)))

    def end_evaluations(self, job_id: str = "shop", **fields: Any) -> None:
        """Mark every open evaluation of the job as processed."""
        ended = {"status": EvaluationStatus.COMPLETE, **fields}
        self.put_led(*(EVALUATIONS.build_put(replace(e, **ended)) for e in self.open_evaluations(job_id)))

    def with_node(self, node_id: str = "node-1", **fields: Any) -> Node:
        self.put(NODES.build_put(a_node(node_id, status=NodeStatus.READY, create_index=WRITE_INDEX, **fields)))
        return self.node(node_id)

    def plan(self, evaluation: Evaluation) -> Plan:
        """Return the plan of the evaluation, without a cache from earlier plans."""
        cache = SchedulerCache.from_snapshot(self.replica)
        return plan_evaluation(cache, self.replica, evaluation, self.moment)


def _is_covered_by_job(change: PutRecord | DeleteRecord) -> bool:
    """Return whether a condition for the job of this record is enough."""
    if change.table in (JOB_VERSIONS.name, JOB_SUBMISSIONS.name):
        return True
    tables = (
        JOB_SUMMARIES.name, PERIODIC_LAUNCHES.name, SCALING_EVENTS.name, SCALING_POLICIES.name, ARRAY_ATTEMPTS.name,
        ARRAY_RESULTS.name, STEP_OUTPUTS.name,
    )  # fmt: skip
    return isinstance(change, DeleteRecord) and change.table in tables


def an_allocation(job: Job, id: str = "a1", **fields: Any) -> Allocation:
    all_fields = {
        "namespace": job.namespace,
        "name": f"{job.id}.{job.groups[0].name}[0]",
        "node_id": "node-1",
        "job_id": job.id,
        "job_version": job.version,
        "job_create_index": job.create_index,
        "task_group": job.groups[0].name,
        "desired_status": DesiredStatus.RUN,
        "client_status": ClientStatus.PENDING,
        "create_index": WRITE_INDEX,
        "alloc_modify_index": WRITE_INDEX,
        **fields,
    }
    return Allocation(id=id, **all_fields)


def an_evaluation(job: Job, id: str = "e1", **fields: Any) -> Evaluation:
    all_fields = {
        "namespace": job.namespace,
        "job_id": job.id,
        "type": SchedulerType.SERVICE,
        "triggered_by": EvaluationTrigger.JOB_REGISTER,
        "status": EvaluationStatus.PENDING,
        "priority": 50,
        "create_index": WRITE_INDEX,
        **fields,
    }
    return Evaluation(id=id, **all_fields)


def a_node(id: str = "node-1", *, cpu: int = 1_000, memory_mb: int = 1_000, **fields: Any) -> Node:
    all_fields = {
        "name": id,
        "secret_digest": hash_secret(SECRET),
        "attributes": {"driver.raw_exec": "1", "driver.exec": "1", "driver.mock": "1", "driver.docker": "1"},
        "node_resources": NodeResources(
            cpu=NodeCpu(cpu_shares=cpu), memory=NodeMemory(memory_mb=memory_mb), disk=NodeDisk(disk_mb=100_000)
        ),
        **fields,
    }
    return Node(id=id, **all_fields)
