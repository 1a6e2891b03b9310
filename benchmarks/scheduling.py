"""One evaluation from the snapshot to the plan, by default on 5,000 nodes in 50 racks: placements, and unchanged jobs."""

import statistics
import time
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from benchmarks.figures import Figure, Figures
from wharf.cluster.engines.memory.log import MemoryLog
from wharf.cluster.engines.port import Committed
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.plans.check import check_plan
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.scheduling.scheduler import plan_evaluation
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALL_TABLES, EVALUATIONS, JOB_VERSIONS, JOBS, NODES
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType
from wharf.contract.model.jobs.constraints import Affinity, Constraint, Spread
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, PutRecord, Write
from wharf.contract.model.nodes.node import Node, NodeStatus
from wharf.contract.model.nodes.resources import NodeCpu, NodeDisk, NodeMemory, NodeResources
from wharf.contract.model.times import DecisionContext
from wharf.world import SimulatedWorld

RUN_COUNT: Final = 7
DEFAULT_NODE_COUNT: Final = 5_000
RACK_COUNT: Final = 50
MAX_CHANGES: Final = 1_000
RACK_ATTRIBUTE: Final = "${meta.rack}"


def measure() -> Figures:
    """Measure placements of several sizes, and evaluations of unchanged and smaller jobs."""
    rows: dict[str, tuple[int, Mapping[str, object], int, float | None, str]] = {
        "300 allocations": (300, {}, DEFAULT_NODE_COUNT, 10.0, "Nomad takes 63 ms and evaluates only a few nodes"),
        "300 with spread over racks": (300, SPREAD, DEFAULT_NODE_COUNT, 40.0, "Nomad takes 1.8 s"),
        "1,200 with spread over racks": (1_200, SPREAD, DEFAULT_NODE_COUNT, 200.0, "Nomad takes 37 s"),
        "300 with spread on 10,000 nodes": (300, SPREAD, 10_000, 80.0, "Nomad takes 2.5 s"),
        "50 with constraints, affinities and spread": (50, MIXED, DEFAULT_NODE_COUNT, None, ""),
        "300 on 50,000 nodes": (300, {}, 50_000, None, ""),
        "1,000 of a batch job": (1_000, {}, DEFAULT_NODE_COUNT, None, ""),
        "10,000 of a batch job": (10_000, {}, DEFAULT_NODE_COUNT, None, ""),
    }
    figures: Figures = {}
    for name, (count, rules, nodes, at_most, note) in rows.items():
        kind = JobType.BATCH if "batch" in name else JobType.SERVICE
        cluster = SchedulingCluster(nodes)
        figures[name] = Figure(
            value=cluster.measure_evaluation_ms(make_job(count, kind, **rules)), unit="ms", at_most=at_most, note=note
        )
    for count in (1_000, 10_000):
        cluster = SchedulingCluster(DEFAULT_NODE_COUNT)
        job = cluster.place_job(make_job(count))
        max_ms = 2.0 + count * 2 / 1_000
        name = f"an unchanged job of {count:,} evaluated again"
        figures[name] = Figure(value=cluster.measure_evaluation_ms(job), unit="ms", at_most=max_ms)
    smaller = replace(job, version=1, job_modify_index=WRITE_INDEX, task_groups=(replace(job.groups[0], count=2_000),))
    cluster.register_job(smaller)
    figures["a job of 10,000 scaled to 2,000"] = Figure(value=cluster.measure_evaluation_ms(smaller), unit="ms")
    return figures


SPREAD: Final = {"spreads": (Spread(attribute=RACK_ATTRIBUTE),)}
MIXED: Final = {
    **SPREAD,
    "constraints": (Constraint(l_target="${meta.size}", r_target="small", operand="!="),),
    "affinities": (Affinity(l_target=RACK_ATTRIBUTE, r_target="rack-7", operand="=", weight=30),),
}


def make_job(count: int, kind: JobType = JobType.SERVICE, **fields: object) -> Job:
    """Return a job with one group. `fields` are further fields of the group."""
    task = Task(name="server", driver="mock", resources=Resources(cpu=20, memory_mb=32))
    group = replace(TaskGroup(name="web", count=count, tasks=(task,)), **fields)
    return Job(
        id="shop", type=kind, node_pool="default", datacenters=("*",), task_groups=(group,), create_index=WRITE_INDEX,
        job_modify_index=WRITE_INDEX,
    )  # fmt: skip


class SchedulingCluster:
    """A log, its replica and the cache of the scheduler, without servers."""

    def __init__(self, nodes: int) -> None:
        self._world = SimulatedWorld(7)
        self._log = MemoryLog(self._world)
        self.replica = Replica(ALL_TABLES)
        for first in range(0, nodes, MAX_CHANGES):
            self._commit(
                [NODES.build_put(make_node(number)) for number in range(first, min(nodes, first + MAX_CHANGES))]
            )
        self._cache = SchedulerCache.from_snapshot(self.replica)

    def measure_evaluation_ms(self, job: Job) -> float:
        """Return the median time from the snapshot to the plan. The first run fills caches and is not counted."""
        evaluation = self._make_evaluation(job)
        plan_evaluation(self._cache, self.replica, evaluation, self._make_context())
        durations_ms = []
        for _ in range(RUN_COUNT):
            started_s = time.perf_counter()
            plan_evaluation(self._cache, self.replica, evaluation, self._make_context())
            durations_ms.append((time.perf_counter() - started_s) * 1_000)
        return statistics.median(durations_ms)

    def place_job(self, job: Job) -> Job:
        """Place all allocations of a job. Return the stored job."""
        plan: Plan | None = plan_evaluation(self._cache, self.replica, self._make_evaluation(job), self._make_context())
        while plan is not None:
            checked = check_plan(plan, self.replica, max_changes=MAX_CHANGES, cache=self._cache)
            if checked.write is not None:
                placed = [
                    change.record
                    for change in checked.write.changes
                    if isinstance(change, PutRecord) and isinstance(change.record, Allocation)
                ]
                self._commit(checked.write.changes)
                self._cache.apply_changes(
                    self.replica, [], [(allocation.id, None, allocation) for allocation in placed]
                )
            plan = checked.remaining_plan
        stored = self.replica.get(JOBS, job.namespace, job.id)
        assert stored is not None, "the job was registered"
        return stored

    def register_job(self, job: Job) -> None:
        self._commit([JOBS.build_put(job), JOB_VERSIONS.build_put(job)])

    def _make_evaluation(self, job: Job) -> Evaluation:
        """Register the job if it is new, and commit a pending evaluation of it. Return the stored evaluation."""
        evaluation = Evaluation(
            id=self._world.new_id(),
            namespace=job.namespace,
            type=SchedulerType(job.type),
            triggered_by=EvaluationTrigger.JOB_REGISTER,
            job_id=job.id,
            priority=50,
            status=EvaluationStatus.PENDING,
            create_index=WRITE_INDEX,
        )
        if self.replica.get(JOBS, job.namespace, job.id) is None:
            self.register_job(job)
        self._commit([EVALUATIONS.build_put(evaluation)])
        stored = self.replica.get(EVALUATIONS, evaluation.id)
        assert stored is not None, "the evaluation was just committed"
        return stored

    def _make_context(self) -> DecisionContext:
        return DecisionContext(self._world.now_ns(), self._world.new_id)

    def _commit(self, changes: object) -> None:
        """Commit changes to the log, and apply them to the replica."""
        write = Write("benchmark", Cause(CauseKind.REQUEST, "benchmark"), changes)  # type: ignore[arg-type]  # the changes belong to different tables
        outcome = self._log.commit(self.replica.encode_write(write, write_id=self._world.new_id()))
        assert isinstance(outcome, Committed), f"the log rejected the write: {outcome}"
        batch = self._log.find_next_batch(self.replica.index, self._log.epoch)
        assert batch is not None, "the log returns the batch that it has just committed"
        self.replica.apply_batch(batch)


def make_node(number: int) -> Node:
    """Return a ready node in one of the racks, with one of five sizes."""
    size = 4_000 + 1_000 * (number % 5)
    return Node(
        id=f"{number:08x}-0000-4000-8000-000000000000",
        name=f"node-{number}",
        status=NodeStatus.READY,
        attributes={"driver.mock": "1", "kernel.name": "linux"},
        meta={"rack": f"rack-{number % RACK_COUNT}", "size": ("small", "middle", "large")[number % 3]},
        node_resources=NodeResources(
            cpu=NodeCpu(cpu_shares=size), memory=NodeMemory(memory_mb=2 * size), disk=NodeDisk(disk_mb=100 * size)
        ),
        create_index=WRITE_INDEX,
    )
