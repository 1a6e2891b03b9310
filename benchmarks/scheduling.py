"""One evaluation from snapshot to plan, on 5,000 nodes in 50 racks unless said: placing many, and finding nothing to do."""

import statistics
import time
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from benchmarks.figures import Figure, Figures
from wharf.engines.memory_log import MemoryLog
from wharf.engines.port import Committed
from wharf.model.allocation import Allocation
from wharf.model.changes import THIS, Cause, CauseKind, Put, Write
from wharf.model.evaluation import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType
from wharf.model.group import TaskGroup
from wharf.model.job import Job, JobType
from wharf.model.moment import Moment
from wharf.model.node import Node, NodeStatus
from wharf.model.node_resources import NodeCpu, NodeDisk, NodeMemory, NodeResources
from wharf.model.placement import Affinity, Constraint, Spread
from wharf.model.resources import Resources
from wharf.model.task import Task
from wharf.scheduling.ground import Ground
from wharf.scheduling.plan import Plan, check
from wharf.scheduling.schedule import schedule
from wharf.state import Replica
from wharf.state.tables import ALL_TABLES, EVALUATIONS, JOB_VERSIONS, JOBS, NODES
from wharf.world import SimulatedWorld

RUNS: Final = 7
NODES_USUAL: Final = 5_000
RACKS: Final = 50
CHANGES_MAX: Final = 1_000
RACK: Final = "${meta.rack}"


def measure() -> Figures:
    rows: dict[str, tuple[int, Mapping[str, object], int, float | None, str]] = {
        "300 allocations": (300, {}, NODES_USUAL, 10.0, "the peer takes 63 ms and looks at a few nodes"),
        "300 with spread over racks": (300, SPREAD, NODES_USUAL, 40.0, "the peer takes 1.8 s"),
        "1,200 with spread over racks": (1_200, SPREAD, NODES_USUAL, 200.0, "the peer takes 37 s"),
        "300 with spread on 10,000 nodes": (300, SPREAD, 10_000, 80.0, "the peer takes 2.5 s"),
        "50 with constraints, affinities and spread": (50, MIXED, NODES_USUAL, None, ""),
        "300 on 50,000 nodes": (300, {}, 50_000, None, ""),
        "1,000 of a batch job": (1_000, {}, NODES_USUAL, None, ""),
        "10,000 of a batch job": (10_000, {}, NODES_USUAL, None, ""),
    }
    figures: Figures = {}
    for name, (count, wishes, nodes, at_most, note) in rows.items():
        kind = JobType.BATCH if "batch" in name else JobType.SERVICE
        cluster = Cluster(nodes)
        figures[name] = Figure(
            value=cluster.evaluation_ms(a_job(count, kind, **wishes)), unit="ms", at_most=at_most, note=note
        )
    for count in (1_000, 10_000):
        cluster = Cluster(NODES_USUAL)
        job = cluster.carry_out(a_job(count))
        most = 2.0 + count * 2 / 1_000
        name = f"an unchanged job of {count:,} evaluated again"
        figures[name] = Figure(value=cluster.evaluation_ms(job), unit="ms", at_most=most)
    fewer = replace(job, version=1, job_modify_index=THIS, task_groups=(replace(job.groups[0], count=2_000),))
    cluster.register(fewer)
    figures["a job of 10,000 scaled to 2,000"] = Figure(value=cluster.evaluation_ms(fewer), unit="ms")
    return figures


SPREAD: Final = {"spreads": (Spread(attribute=RACK),)}
MIXED: Final = {
    **SPREAD,
    "constraints": (Constraint(l_target="${meta.size}", r_target="small", operand="!="),),
    "affinities": (Affinity(l_target=RACK, r_target="rack-7", operand="=", weight=30),),
}


def a_job(count: int, kind: JobType = JobType.SERVICE, **wishes: object) -> Job:
    task = Task(name="server", driver="mock", resources=Resources(cpu=20, memory_mb=32))
    group = replace(TaskGroup(name="web", count=count, tasks=(task,)), **wishes)
    return Job(
        id="shop", type=kind, node_pool="default", datacenters=("*",), task_groups=(group,), create_index=THIS,
        job_modify_index=THIS,
    )  # fmt: skip


class Cluster:
    """A log, its replica, and the scheduler's ground, without servers."""

    def __init__(self, nodes: int) -> None:
        self._world = SimulatedWorld(7)
        self._log = MemoryLog(self._world)
        self.replica = Replica(ALL_TABLES)
        for first in range(0, nodes, CHANGES_MAX):
            self._commit([NODES.put(a_node(number)) for number in range(first, min(nodes, first + CHANGES_MAX))])
        self._ground = Ground.of(self.replica)

    def evaluation_ms(self, job: Job) -> float:
        """From snapshot to plan; the first run, in which answers are found that are kept, is not counted."""
        evaluation = self._asked(job)
        schedule(self._ground, self.replica, evaluation, self._moment())
        taken = []
        for _ in range(RUNS):
            began = time.perf_counter()
            schedule(self._ground, self.replica, evaluation, self._moment())
            taken.append((time.perf_counter() - began) * 1_000)
        return statistics.median(taken)

    def carry_out(self, job: Job) -> Job:
        """All of it placed; answers the job as it is stored."""
        plan: Plan | None = schedule(self._ground, self.replica, self._asked(job), self._moment())
        while plan is not None:
            checked = check(plan, self.replica, changes_max=CHANGES_MAX, ground=self._ground)
            if checked.write is not None:
                placed = [
                    change.record
                    for change in checked.write.changes
                    if isinstance(change, Put) and isinstance(change.record, Allocation)
                ]
                self._commit(checked.write.changes)
                self._ground.hear(self.replica, [], [(each.id, None, each) for each in placed])
            plan = checked.rest
        stored = self.replica.get(JOBS, job.namespace, job.id)
        assert stored is not None, "it was registered"
        return stored

    def register(self, job: Job) -> None:
        self._commit([JOBS.put(job), JOB_VERSIONS.put(job)])

    def _asked(self, job: Job) -> Evaluation:
        evaluation = Evaluation(
            id=self._world.new_id(),
            namespace=job.namespace,
            type=SchedulerType(job.type),
            triggered_by=EvaluationTrigger.JOB_REGISTER,
            job_id=job.id,
            priority=50,
            status=EvaluationStatus.PENDING,
            create_index=THIS,
        )
        if self.replica.get(JOBS, job.namespace, job.id) is None:
            self.register(job)
        self._commit([EVALUATIONS.put(evaluation)])
        stored = self.replica.get(EVALUATIONS, evaluation.id)
        assert stored is not None, "it was written just now"
        return stored

    def _moment(self) -> Moment:
        return Moment(self._world.now_ns(), self._world.new_id)

    def _commit(self, changes: object) -> None:
        write = Write("benchmark", Cause(CauseKind.REQUEST, "benchmark"), changes)  # type: ignore[arg-type]  # changes of any table
        outcome = self._log.commit(self.replica.encoded(write, write_id=self._world.new_id()))
        assert isinstance(outcome, Committed), f"the log refused: {outcome}"
        batch = self._log.next_after(self.replica.index, self._log.epoch)
        assert batch is not None, "the log has what it has just committed"
        self.replica.apply(batch)


def a_node(number: int) -> Node:
    size = 4_000 + 1_000 * (number % 5)
    return Node(
        id=f"{number:08x}-0000-4000-8000-000000000000",
        name=f"node-{number}",
        status=NodeStatus.READY,
        attributes={"driver.mock": "1", "kernel.name": "linux"},
        meta={"rack": f"rack-{number % RACKS}", "size": ("small", "middle", "large")[number % 3]},
        node_resources=NodeResources(
            cpu=NodeCpu(cpu_shares=size), memory=NodeMemory(memory_mb=2 * size), disk=NodeDisk(disk_mb=100 * size)
        ),
        create_index=THIS,
    )
