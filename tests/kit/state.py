"""A state without servers: decisions are committed to a real log at once, and the replica follows."""

from typing import Any, TypeVar

from msgspec.structs import replace

from wharf.engines.memory_log import MemoryLog
from wharf.engines.port import Bounds, Committed, Outcome
from wharf.model.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.model.changes import THIS, Cause, CauseKind, Write
from wharf.model.evaluation import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType
from wharf.model.founding import founding_records
from wharf.model.job import Job
from wharf.model.job_settings import JobSettings
from wharf.model.moment import Moment
from wharf.model.node import Node, NodeStatus
from wharf.model.node_resources import NodeCpu, NodeDisk, NodeMemory, NodeResources
from wharf.model.secret import secret_digest
from wharf.operations import jobs
from wharf.operations.decision import Decision
from wharf.operations.derived import with_derived
from wharf.state import Replica
from wharf.state.tables import (
    ALL_TABLES,
    ALLOCATIONS,
    EVALUATIONS,
    FORMAT,
    JOBS,
    NAMESPACES,
    NODE_POOLS,
    NODES,
    SCHEDULER_CONFIGURATION,
    SUMMARIES,
)
from wharf.world import SimulatedWorld

T = TypeVar("T")

SETTINGS = JobSettings()
SECOND_NS = 1_000_000_000
CAUSE = Cause(CauseKind.REQUEST, "test")
SECRET = "a secret of a node"


class Refused(Exception):
    """The log did not take the write."""


class AState:
    """A founded log and its replica. `now_ns` is where the test says it is."""

    def __init__(self, *, bounds: Bounds | None = None) -> None:
        self.world = SimulatedWorld(7)
        self.log = MemoryLog(self.world, bounds=bounds)
        self.replica = Replica(ALL_TABLES)
        self.now_ns = self.world.now_ns()
        tables: dict[type, Any] = {t.record: t for t in (NAMESPACES, NODE_POOLS, SCHEDULER_CONFIGURATION, FORMAT)}
        self.put(*(tables[type(r)].put(replace(r, create_index=THIS)) for r in founding_records()))

    @property
    def moment(self) -> Moment:
        return Moment(self.now_ns, self.world.new_id)

    def try_commit(self, write: Write) -> Outcome:
        outcome = self.log.commit(self.replica.encoded(write, write_id=self.world.new_id()))
        if isinstance(outcome, Committed):
            batch = self.log.next_after(self.replica.index, self.log.epoch)
            assert batch is not None, "the log has what it has just committed"
            self.replica.apply(batch)
        return outcome

    def commit(self, write: Write) -> int:
        outcome = self.try_commit(write)
        if not isinstance(outcome, Committed):
            raise Refused(str(outcome))
        return outcome.index

    def put(self, *changes: Any) -> int:
        return self.commit(Write("test", CAUSE, changes))

    def do(self, decision: Decision[T]) -> T:
        """Commit a decision, as somebody who is not the leader."""
        if decision.write is None:
            return decision.reply(self.replica.index)
        return decision.reply(self.commit(decision.write))

    def lead(self, decision: Decision[T]) -> T:
        """Commit a decision with all that follows from it, as the leader does."""
        if decision.write is None:
            return decision.reply(self.replica.index)
        return decision.reply(self.commit(with_derived(self.replica, decision.write)))

    # -- words

    def register(self, job: Job, **options: Any) -> jobs.Registered:
        return self.do(jobs.register(self.replica, jobs.Registration(job=job, **options), self.moment, SETTINGS))

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
        return [evaluation for evaluation in self.replica.all(EVALUATIONS) if evaluation.job_id == job_id]

    def open_evaluations(self, job_id: str = "shop") -> list[Evaluation]:
        return [evaluation for evaluation in self.evaluations(job_id) if not evaluation.status.is_terminal]

    def summary(self, job_id: str = "shop") -> Any:
        return self.replica.get(SUMMARIES, "default", job_id)

    def put_led(self, *changes: Any) -> int:
        """Changes with all that follows from them."""
        return self.commit(with_derived(self.replica, Write("test", CAUSE, changes)))

    def with_allocation(self, job: Job, allocation_id: str = "a1", **fields: Any) -> Allocation:
        self.put_led(ALLOCATIONS.put(an_allocation(job, allocation_id, **fields)))
        return self.allocation(allocation_id)

    def with_client_status(self, allocation_id: str, status: ClientStatus) -> None:
        self.put_led(ALLOCATIONS.put(replace(self.allocation(allocation_id), client_status=status)))

    def end_evaluations(self, job_id: str = "shop", **fields: Any) -> None:
        """Every open evaluation of the job has been processed."""
        ended = {"status": EvaluationStatus.COMPLETE, **fields}
        self.put_led(*(EVALUATIONS.put(replace(e, **ended)) for e in self.open_evaluations(job_id)))

    def with_node(self, node_id: str = "node-1", **fields: Any) -> Node:
        self.put(NODES.put(a_node(node_id, status=NodeStatus.READY, create_index=THIS, **fields)))
        return self.node(node_id)


def an_allocation(job: Job, id: str = "a1", **fields: Any) -> Allocation:
    given = {
        "namespace": job.namespace,
        "name": f"{job.id}.{job.groups[0].name}[0]",
        "node_id": "node-1",
        "job_id": job.id,
        "job_version": job.version,
        "job_create_index": job.create_index,
        "task_group": job.groups[0].name,
        "desired_status": DesiredStatus.RUN,
        "client_status": ClientStatus.PENDING,
        "create_index": THIS,
        "alloc_modify_index": THIS,
        **fields,
    }
    return Allocation(id=id, **given)


def an_evaluation(job: Job, id: str = "e1", **fields: Any) -> Evaluation:
    given = {
        "namespace": job.namespace,
        "job_id": job.id,
        "type": SchedulerType.SERVICE,
        "triggered_by": EvaluationTrigger.JOB_REGISTER,
        "status": EvaluationStatus.PENDING,
        "priority": 50,
        "create_index": THIS,
        **fields,
    }
    return Evaluation(id=id, **given)


def a_node(id: str = "node-1", *, cpu: int = 1_000, memory_mb: int = 1_000, **fields: Any) -> Node:
    given = {
        "name": id,
        "secret_digest": secret_digest(SECRET),
        "attributes": {"driver.raw_exec": "1", "driver.exec": "1", "driver.mock": "1", "driver.docker": "1"},
        "node_resources": NodeResources(
            cpu=NodeCpu(cpu_shares=cpu), memory=NodeMemory(memory_mb=memory_mb), disk=NodeDisk(disk_mb=100_000)
        ),
        **fields,
    }
    return Node(id=id, **given)
