"""The replica: the rate of applied changes, the longest pauses, a load of a million allocations, and many waiters.

Each part runs in a separate process, so that its memory is measured alone. Garbage collection is set up as in a server
process.
"""

import asyncio
import itertools
import json
import multiprocessing
import resource
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import msgspec

from benchmarks.figures import Figure, Figures, print_table
from wharf.agent.roles.server import LoadedStateFreezer, tune_garbage_collector
from wharf.cluster.state import BatchApplication, Replica, ReplicaLoad, Subscription, WatchTarget
from wharf.cluster.state.codec import encode_record
from wharf.cluster.state.tables import ALL_TABLES, ALLOCATIONS, ALLOCATIONS_OF_JOB, ALLOCATIONS_ON_NODE
from wharf.cluster.state.watches import watch_index, watch_key, watch_prefix, watch_table
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.metrics import AllocMetric, NodeScore
from wharf.contract.model.allocations.resources import (
    AllocatedCpu,
    AllocatedMemory,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)
from wharf.contract.model.allocations.task_states import TaskEvent, TaskEventType, TaskState, TaskStatus
from wharf.contract.model.log import WRITE_INDEX, Batch, Cause, CauseKind, EncodedChange, LogPosition, StoredRecord

SEED: Final = 20_261_121
BATCH_CHANGES: Final = 1_000
APPLIED_CHANGES: Final = 100_000
LOADED_ALLOCATIONS: Final = 1_000_000
GROWN_ALLOCATIONS: Final = 1_000_000
NODE_COUNT: Final = 5_000
WAITER_COUNT: Final = 10_000
ROWS_PER_STEP: Final = 250
MAX_PAUSE_MS: Final = 5.0

CAUSE: Final = Cause(CauseKind.EVALUATION, "bench")


def measure(loaded: int = LOADED_ALLOCATIONS) -> Figures:
    """Run each part in a separate process."""
    figures: Figures = {}
    for part in (measure_apply, measure_apply_watched, measure_growth, measure_waking):
        figures |= run_in_process(part)
    for states in (False, True):
        figures |= run_in_process(measure_load, loaded, states)
    return figures


def run_in_process(part: Callable[..., Figures], *arguments: object) -> Figures:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_run_part, (part, *arguments))


def _run_part(part: Callable[..., Figures], *arguments: object) -> Figures:
    tune_garbage_collector()
    return part(*arguments)


# -- measurements -------------------------------------------------------------------------------------------------


def measure_apply() -> Figures:
    return _measure_create_and_update("apply", watched=False)


def measure_apply_watched() -> Figures:
    return _measure_create_and_update("apply, watched", watched=True)


def _measure_create_and_update(name: str, *, watched: bool) -> Figures:
    """Create allocations in batches of 1,000, then update them as reports of their nodes do."""
    allocations = AllocationSource()
    created = [
        Batch(2 + number, "w", "plan", CAUSE, allocations.make_placed_batch())
        for number in range(APPLIED_CHANGES // BATCH_CHANGES)
    ]
    updated = [
        Batch(2 + len(created) + number, "w", "report", CAUSE, allocations.make_started_batch(batch))
        for number, batch in enumerate(created)
    ]
    replica = Replica(ALL_TABLES)
    crowd = WaiterCrowd(replica, allocations) if watched else None
    LoadedStateFreezer().freeze()
    figures: Figures = {}
    for operation, batches in (("create", created), ("update", updated)):
        figures |= _measure_batches(f"{name}: {operation}", replica, batches, crowd)
    return figures


def _measure_batches(
    name: str, replica: Replica, batches: Iterable[Batch], crowd: "WaiterCrowd | None" = None
) -> Figures:
    """Apply batches in steps, as the follower does. Each step blocks the event loop."""
    steps: list[LoopPause] = []
    count = 0
    for batch in batches:
        count += 1
        application = BatchApplication(replica, batch)
        steps += _measure_steps(application.decode_in_steps())
        stopwatch = Stopwatch()
        application.apply_changes()
        waking = application.wake_in_steps()
        next(waking, None)  # The follower does both in one step.
        steps.append(stopwatch.stop())
        steps += _measure_steps(waking)
        if crowd is not None:
            crowd.rearm()
    changes = count * BATCH_CHANGES
    cpu_s = sum(step.cpu_ms for step in steps) / 1_000
    durations_ms = sorted(step.wall_ms for step in steps)
    return {
        name: Figure(
            value=changes / sum(durations_ms) * 1_000,
            unit="changes/s",
            at_least=150_000,
            note=f"{changes / cpu_s:,.0f} per CPU second",
        ),
        f"{name}, longest pause": find_longest_pause(
            steps, note=f"median {durations_ms[len(durations_ms) // 2]:.1f} ms"
        ),
    }


def _measure_steps(steps: Iterator[None]) -> list["LoopPause"]:
    """Run all steps. Return the duration of each."""
    pauses, is_done = [], False
    while not is_done:
        stopwatch = Stopwatch()
        is_done = next(steps, steps) is steps
        pauses.append(stopwatch.stop())
    return pauses


def measure_growth() -> Figures:
    """Create allocations batch by batch until a million exist, so that dicts grow."""
    allocations = AllocationSource(salt=2)
    batches = (
        Batch(2 + number, "w", "plan", CAUSE, allocations.make_placed_batch())
        for number in range(GROWN_ALLOCATIONS // BATCH_CHANGES)
    )
    return _measure_batches(f"grow to {GROWN_ALLOCATIONS:,}", Replica(ALL_TABLES), batches)


def measure_load(count: int, with_states: bool) -> Figures:
    """Load allocations as rows, as a server does at its start. Then list them, and create more."""
    name = f"load {count:,}" + (" with task states" if with_states else "")
    replica = Replica(ALL_TABLES)
    before_mb = measure_resident_mb()
    started_s = time.perf_counter()
    slices, steps = _load(replica, count, with_states)
    total_s = time.perf_counter() - started_s
    LoadedStateFreezer().freeze()
    resident_mb = measure_resident_mb()
    load_s = sum(pause.wall_ms for pause in (*slices, *steps)) / 1_000
    cpu_s = sum(pause.cpu_ms for pause in (*slices, *steps)) / 1_000
    started_s = time.perf_counter()
    allocations_by_age = list(replica.iter_by_creation(ALLOCATIONS, reverse=True))
    list_ms = (time.perf_counter() - started_s) * 1_000
    assert len(allocations_by_age) == count
    del allocations_by_age
    allocations = AllocationSource(salt=1)
    batches = [
        Batch(replica.index + 1 + number, "w", "plan", CAUSE, allocations.make_placed_batch()) for number in range(100)
    ]
    return {
        f"{name}: the replica's part": Figure(
            value=load_s,
            unit="s",
            note=f"CPU time {cpu_s:.1f} s; encoding the rows took another {total_s - load_s:.1f} s",
        ),
        f"{name}: longest slice of {ROWS_PER_STEP} rows": find_longest_pause(slices),
        f"{name}: longest step to finish": find_longest_pause(steps),
        f"{name}: memory": Figure(value=resident_mb, unit="MB", at_most=1_200, note=f"{before_mb:.0f} MB before"),
        f"{name}: list all in order of creation": Figure(value=list_ms, unit="ms"),
        **_measure_batches(f"{name}: then create", replica, batches),
    }


def _load(replica: Replica, count: int, with_states: bool) -> tuple[list["LoopPause"], list["LoopPause"]]:
    """Load rows. Return the durations of the slices, and of the final steps."""
    slices = []
    load = ReplicaLoad(replica)
    for rows in AllocationSource().iterate_rows(count, with_states):
        stopwatch = Stopwatch()
        load.add_records(rows)
        slices.append(stopwatch.stop())
    return slices, _measure_steps(load.finish_in_steps(LogPosition(count, {ALLOCATIONS.name: count})))


def measure_waking() -> Figures:
    return asyncio.run(_measure_waking())


async def _measure_waking() -> Figures:
    """Measure waiters on one record, and waiters on a job of which many allocations change."""
    replica = Replica(ALL_TABLES)
    allocations = AllocationSource()
    placed = allocations.make_placed_batch()
    replica.apply_batch(Batch(1, "w", "plan", CAUSE, placed))
    key, job = placed[0].key, allocations.jobs[0]
    name = f"wake {WAITER_COUNT:,} waiters"
    return {
        f"{name} on one key": await _measure_wake(
            replica, watch_key(ALLOCATIONS, key), Batch(2, "w", "report", CAUSE, placed[:1])
        ),
        f"{name} on one job, of which {len(placed):,} allocations change": await _measure_wake(
            replica, watch_index(ALLOCATIONS_OF_JOB, "default", job), Batch(3, "w", "report", CAUSE, placed)
        ),
    }


async def _measure_wake(replica: Replica, watched: WatchTarget, batch: Batch) -> Figure:
    """Measure the time from the begin of `apply_batch` until the last waiter runs again."""
    loop = asyncio.get_running_loop()

    async def wait() -> float:
        changed: asyncio.Future[None] = loop.create_future()
        subscription = replica.watches.subscribe([watched], lambda: changed.set_result(None))
        await changed
        woken_s = time.perf_counter()
        subscription.close()
        return woken_s

    waiters = [loop.create_task(wait()) for _ in range(WAITER_COUNT)]
    await asyncio.sleep(0)  # All waiters start and subscribe.
    assert replica.watches.subscription_count == WAITER_COUNT
    LoadedStateFreezer().freeze()
    started_s = time.perf_counter()
    replica.apply_batch(batch)
    applied_ms = (time.perf_counter() - started_s) * 1_000
    last = max(await asyncio.gather(*waiters))
    return Figure(
        value=(last - started_s) * 1_000, unit="ms", at_most=50, note=f"of which {applied_ms:.1f} ms in apply_batch"
    )


# -- test data ----------------------------------------------------------------------------------------------------


class AllocationSource:
    """A source of realistic allocations: jobs of 1,000, each placed by one evaluation on random nodes."""

    def __init__(self, *, salt: int = 0) -> None:
        """Sources with different salts create different ids."""
        self._random = Random(SEED + salt)
        self.nodes = [self._make_id() for _ in range(NODE_COUNT)]
        self.jobs: list[str] = []

    def _make_id(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def iterate_allocations(self, *, is_running: bool, created: int = WRITE_INDEX) -> Iterator[Allocation]:
        """Yield allocations of a new job, without end. `created` is their create index."""
        number = len(self.jobs)
        job, evaluation, deployment = f"job-{number:05}", self._make_id(), self._make_id()
        self.jobs.append(job)
        task = AllocatedTaskResources(cpu=AllocatedCpu(cpu_shares=100), memory=AllocatedMemory(memory_mb=128))
        shared = AllocatedSharedResources(disk_mb=300)
        resources = AllocatedResources(tasks={"server": task}, shared=shared)
        scores = tuple(NodeScore(node_id=node, norm_score=0.5) for node in self.nodes[:5])
        metrics = AllocMetric(
            nodes_evaluated=NODE_COUNT,
            nodes_available={"dc1": NODE_COUNT},
            score_meta_data=scores,
            allocation_time=number,
        )
        for position in itertools.count():
            node = self._random.randrange(NODE_COUNT)
            yield Allocation(
                id=self._make_id(),
                namespace="default",
                eval_id=evaluation,
                name=f"{job}.web[{position}]",
                node_id=self.nodes[node],
                node_name=f"node-{node:05}",
                job_id=job,
                job_version=0,
                job_create_index=1,
                task_group="web",
                allocated_resources=resources,
                metrics=metrics,
                desired_status=DesiredStatus.RUN,
                client_status=ClientStatus.RUNNING if is_running else ClientStatus.PENDING,
                task_states={"server": make_running_task(position)} if is_running else None,
                deployment_id=deployment,
                create_index=created,
                alloc_modify_index=created,
                create_time=1_767_225_600_000_000_000 + position,
                modify_time=1_767_225_600_000_000_000 + position,
            )

    def make_placed_batch(self) -> list[EncodedChange]:
        """Return the changes that create the allocations of a new job."""
        records = islice(self.iterate_allocations(is_running=False), BATCH_CHANGES)
        return [EncodedChange(ALLOCATIONS.name, record.id, encode_record(ALLOCATIONS, record)) for record in records]

    def make_started_batch(self, batch: Batch) -> list[EncodedChange]:
        """Return the changes of a report: all allocations of the batch run."""
        decode = msgspec.msgpack.Decoder(Allocation).decode
        changes = []
        for number, change in enumerate(batch.changes):
            assert change.data is not None
            running = msgspec.structs.replace(
                decode(change.data),
                client_status=ClientStatus.RUNNING,
                task_states={"server": make_running_task(number)},
                create_index=batch.index,
                alloc_modify_index=batch.index,
            )
            changes.append(EncodedChange(change.table, change.key, encode_record(ALLOCATIONS, running)))
        return changes

    def iterate_rows(self, count: int, with_states: bool) -> Iterator[list[StoredRecord]]:
        """Yield rows in the order of their keys, as SQLite and etcd do, so that neighbors belong to different jobs."""
        jobs = [
            self.iterate_allocations(is_running=with_states, created=1 + job) for job in range(count // BATCH_CHANGES)
        ]
        rows = []
        for number in range(count):
            job = self._random.randrange(len(jobs))
            bits = (number << 108) | self._random.getrandbits(107)
            record = msgspec.structs.replace(next(jobs[job]), id=str(uuid.UUID(int=bits, version=4)))
            rows.append(StoredRecord(ALLOCATIONS.name, record.id, 1 + job, encode_record(ALLOCATIONS, record)))
            if len(rows) == ROWS_PER_STEP:
                yield rows
                rows = []
        yield rows


def make_running_task(number: int) -> TaskState:
    """Return the state of a running task, with unique times."""
    kinds = (TaskEventType.RECEIVED, TaskEventType.SETUP, TaskEventType.STARTED)
    events = tuple(
        TaskEvent(type=kind, time=1_767_225_600_000_000_000 + 1_000 * number + offset)
        for offset, kind in enumerate(kinds)
    )
    return TaskState(state=TaskStatus.RUNNING, events=events)


class WaiterCrowd:
    """The waiters of a busy cluster: each node, each job, many records, two prefixes and a table."""

    def __init__(self, replica: Replica, allocations: AllocationSource) -> None:
        self._subscriptions: list[Subscription] = []
        self._woken: list[Subscription] = []
        self._replica = replica
        for node in allocations.nodes:
            self._subscribe(watch_index(ALLOCATIONS_ON_NODE, node))
        for job in allocations.jobs:
            self._subscribe(watch_index(ALLOCATIONS_OF_JOB, "default", job))
        for number in range(1_000):
            self._subscribe(watch_key(ALLOCATIONS, f"waiter-{number}"))
        for prefix in ("00", "abcd"):
            self._subscribe(watch_prefix(ALLOCATIONS, prefix))
        self._subscribe(watch_table(ALLOCATIONS))

    def _subscribe(self, watched: WatchTarget) -> None:
        holder: list[Subscription] = []
        holder.append(self._replica.watches.subscribe([watched], lambda: self._woken.append(holder[0])))
        self._subscriptions.append(holder[0])

    def rearm(self) -> None:
        for subscription in self._woken:
            subscription.rearm()
        self._woken.clear()


class LoopPause(NamedTuple):
    """How long an event loop was blocked, as wall time and as CPU time of its thread."""

    wall_ms: float
    cpu_ms: float


class Stopwatch:
    """Measures wall time and CPU time since its creation."""

    def __init__(self) -> None:
        self._start_cpu_s = time.thread_time()
        self._start_wall_s = time.perf_counter()

    def stop(self) -> LoopPause:
        wall_s = time.perf_counter() - self._start_wall_s
        return LoopPause(wall_s * 1_000, (time.thread_time() - self._start_cpu_s) * 1_000)


def find_longest_pause(pauses: Sequence[LoopPause], *, note: str = "") -> Figure:
    """Return the longest pause as a figure, with the number of pauses over the limit as a note."""
    over_count = sum(pause.cpu_ms > MAX_PAUSE_MS for pause in pauses)
    longest_cpu = f"longest by CPU time {max(pause.cpu_ms for pause in pauses):.1f} ms"
    notes = (longest_cpu, f"{over_count} of {len(pauses)} longer than {MAX_PAUSE_MS:.0f} ms of CPU time", note)
    return Figure(
        value=max(pause.wall_ms for pause in pauses),
        unit="ms",
        at_most=MAX_PAUSE_MS,
        note=", ".join(filter(None, notes)),
    )


def measure_resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def main(arguments: Sequence[str]) -> None:
    figures = measure()
    if "--json" in arguments:
        print(json.dumps(msgspec.to_builtins(figures), indent=2))
    else:
        print_table(figures)


if __name__ == "__main__":
    main(sys.argv[1:])
