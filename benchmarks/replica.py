"""The replica: changes applied a second and the longest pause, a load of a million allocations, a crowd of waiters.

Each part runs in a process of its own, with the collector set as a serving process sets it, so that none inherits
another's memory.
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
from wharf.agent.collector import freeze_loaded, tune_collector
from wharf.model.allocated_resources import (
    AllocatedCpu,
    AllocatedMemory,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)
from wharf.model.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.model.changes import THIS, Cause, CauseKind
from wharf.model.log import Batch, Change, Row, Standing
from wharf.model.metric import AllocMetric, NodeScore
from wharf.model.task_state import TaskEvent, TaskEventType, TaskState, TaskStatus
from wharf.state import Applying, Loading, Replica, Subscription, Watched
from wharf.state.codec import encode
from wharf.state.tables import ALL_TABLES, ALLOCATIONS, ALLOCATIONS_OF_JOB, ALLOCATIONS_ON_NODE
from wharf.state.watches import beginning, one, those, whole

SEED: Final = 20_261_121
BATCH_CHANGES: Final = 1_000
APPLIED: Final = 100_000
LOADED: Final = 1_000_000
GROWN: Final = 1_000_000
NODES: Final = 5_000
WAITERS: Final = 10_000
ROWS_AT_ONCE: Final = 250
PAUSE_MS_MAX: Final = 5.0

CAUSE: Final = Cause(CauseKind.EVALUATION, "bench")


def measure(loaded: int = LOADED) -> Figures:
    figures: Figures = {}
    for part in (measure_apply, measure_apply_watched, measure_growth, measure_waking):
        figures |= in_a_process(part)
    for states in (False, True):
        figures |= in_a_process(measure_load, loaded, states)
    return figures


def in_a_process(part: Callable[..., Figures], *arguments: object) -> Figures:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_part, (part, *arguments))


def _part(part: Callable[..., Figures], *arguments: object) -> Figures:
    tune_collector()
    return part(*arguments)


# -- what is measured ----------------------------------------------------------------------------------------------


def measure_apply() -> Figures:
    return _measure_apply("apply", watched=False)


def measure_apply_watched() -> Figures:
    return _measure_apply("apply, watched", watched=True)


def _measure_apply(name: str, *, watched: bool) -> Figures:
    """Allocations with four indexes are created, then updated by their nodes, in batches of 1,000."""
    allocations = Allocations()
    created = [
        Batch(2 + number, "w", "plan", CAUSE, allocations.placed()) for number in range(APPLIED // BATCH_CHANGES)
    ]
    updated = [
        Batch(2 + len(created) + number, "w", "report", CAUSE, allocations.started(batch))
        for number, batch in enumerate(created)
    ]
    replica = Replica(ALL_TABLES)
    crowd = Crowd(replica, allocations) if watched else None
    freeze_loaded()
    figures: Figures = {}
    for what, batches in (("create", created), ("update", updated)):
        figures |= _applied(f"{name}: {what}", replica, batches, crowd)
    return figures


def _applied(name: str, replica: Replica, batches: Iterable[Batch], crowd: "Crowd | None" = None) -> Figures:
    """As the follower takes batches in: others get their turn between two steps, so a step is what holds a loop."""
    steps: list[Pause] = []
    count = 0
    for batch in batches:
        count += 1
        applying = Applying(replica, batch)
        steps += _steps(applying.decode_in_steps())
        began = Stopwatch()
        applying.take_in()
        waking = applying.wake_in_steps()
        next(waking, None)  # The follower does both in the same turn.
        steps.append(began.stop())
        steps += _steps(waking)
        if crowd is not None:
            crowd.rearm()
    changes = count * BATCH_CHANGES
    processor_s = sum(step.processor_ms for step in steps) / 1_000
    holds = sorted(step.wall_ms for step in steps)
    return {
        name: Figure(
            value=changes / sum(holds) * 1_000,
            unit="changes/s",
            at_least=150_000,
            note=f"{changes / processor_s:,.0f} a second of the processor's time",
        ),
        f"{name}, longest hold": longest(steps, note=f"median {holds[len(holds) // 2]:.1f} ms"),
    }


def _steps(steps: Iterator[None]) -> list["Pause"]:
    pauses, is_over = [], False
    while not is_over:
        began = Stopwatch()
        is_over = next(steps, steps) is steps
        pauses.append(began.stop())
    return pauses


def measure_growth() -> Figures:
    """Allocations come, batch by batch, until there are a million: dicts grow on the way."""
    allocations = Allocations(salt=2)
    batches = (Batch(2 + number, "w", "plan", CAUSE, allocations.placed()) for number in range(GROWN // BATCH_CHANGES))
    return _applied(f"grow to {GROWN:,}", Replica(ALL_TABLES), batches)


def measure_load(count: int, with_states: bool) -> Figures:
    """A start: a million allocations come as rows. Then the state is loaded again over itself."""
    name = f"load {count:,}" + (" with task states" if with_states else "")
    replica = Replica(ALL_TABLES)
    before_mb = resident_mb()
    began = time.perf_counter()
    slices, steps = _load(replica, count, with_states)
    all_s = time.perf_counter() - began
    freeze_loaded()
    resident = resident_mb()
    load_s = sum(pause.wall_ms for pause in (*slices, *steps)) / 1_000
    processor_s = sum(pause.processor_ms for pause in (*slices, *steps)) / 1_000
    began = time.perf_counter()
    newest = list(replica.by_creation(ALLOCATIONS, reverse=True))
    listed_ms = (time.perf_counter() - began) * 1_000
    assert len(newest) == count
    del newest
    allocations = Allocations(salt=1)
    more = [Batch(replica.index + 1 + number, "w", "plan", CAUSE, allocations.placed()) for number in range(100)]
    return {
        f"{name}: the replica's part": Figure(
            value=load_s,
            unit="s",
            note=f"of the processor {processor_s:.1f} s; making the rows, not counted, {all_s - load_s:.1f} s",
        ),
        f"{name}: longest slice of {ROWS_AT_ONCE}": longest(slices),
        f"{name}: longest step to finish": longest(steps),
        f"{name}: memory": Figure(value=resident, unit="MB", at_most=1_200, note=f"{before_mb:.0f} MB before"),
        f"{name}: references to all, in order": Figure(value=listed_ms, unit="ms"),
        **_applied(f"{name}: then create", replica, more),
    }


def _load(replica: Replica, count: int, with_states: bool) -> tuple[list["Pause"], list["Pause"]]:
    """The pauses of the slices, and those of the steps to finish."""
    slices = []
    loading = Loading(replica)
    for rows in Allocations().rows(count, with_states):
        began = Stopwatch()
        loading.take(rows)
        slices.append(began.stop())
    return slices, _steps(loading.finish_in_steps(Standing(count, {ALLOCATIONS.name: count})))


def measure_waking() -> Figures:
    return asyncio.run(_measure_waking())


async def _measure_waking() -> Figures:
    replica = Replica(ALL_TABLES)
    allocations = Allocations()
    placed = allocations.placed()
    replica.apply(Batch(1, "w", "plan", CAUSE, placed))
    key, job = placed[0].key, allocations.jobs[0]
    name = f"wake {WAITERS:,} waiters"
    return {
        f"{name} on one key": await _woken(replica, one(ALLOCATIONS, key), Batch(2, "w", "report", CAUSE, placed[:1])),
        f"{name} on one job, of which {len(placed):,} allocations change": await _woken(
            replica, those(ALLOCATIONS_OF_JOB, "default", job), Batch(3, "w", "report", CAUSE, placed)
        ),
    }


async def _woken(replica: Replica, watched: Watched, batch: Batch) -> Figure:
    """From the beginning of `apply` until the last of the waiters runs again."""
    loop = asyncio.get_running_loop()

    async def wait() -> float:
        changed: asyncio.Future[None] = loop.create_future()
        subscription = replica.watches.subscribe([watched], lambda: changed.set_result(None))
        await changed
        woken_at = time.perf_counter()
        subscription.end()
        return woken_at

    waiters = [loop.create_task(wait()) for _ in range(WAITERS)]
    await asyncio.sleep(0)  # Each begins, and waits.
    assert replica.watches.count == WAITERS
    freeze_loaded()
    began = time.perf_counter()
    replica.apply(batch)
    applied_ms = (time.perf_counter() - began) * 1_000
    last = max(await asyncio.gather(*waiters))
    return Figure(value=(last - began) * 1_000, unit="ms", at_most=50, note=f"of this in apply {applied_ms:.1f} ms")


# -- what it is measured with --------------------------------------------------------------------------------------


class Allocations:
    """Allocations as a cluster has them: jobs of 1,000, each placed by one evaluation on nodes by chance."""

    def __init__(self, *, salt: int = 0) -> None:
        """Another salt, other ids."""
        self._random = Random(SEED + salt)
        self.nodes = [self._id() for _ in range(NODES)]
        self.jobs: list[str] = []

    def _id(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def records(self, *, is_running: bool, created: int = THIS) -> Iterator[Allocation]:
        """The allocations of one job, without end."""
        number = len(self.jobs)
        job, evaluation, deployment = f"job-{number:05}", self._id(), self._id()
        self.jobs.append(job)
        task = AllocatedTaskResources(cpu=AllocatedCpu(cpu_shares=100), memory=AllocatedMemory(memory_mb=128))
        shared = AllocatedSharedResources(disk_mb=300)
        resources = AllocatedResources(tasks={"server": task}, shared=shared)
        scores = tuple(NodeScore(node_id=node, norm_score=0.5) for node in self.nodes[:5])
        metrics = AllocMetric(
            nodes_evaluated=NODES, nodes_available={"dc1": NODES}, score_meta_data=scores, allocation_time=number
        )
        for place in itertools.count():
            node = self._random.randrange(NODES)
            yield Allocation(
                id=self._id(),
                namespace="default",
                eval_id=evaluation,
                name=f"{job}.web[{place}]",
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
                task_states={"server": a_running_task(place)} if is_running else None,
                deployment_id=deployment,
                create_index=created,
                alloc_modify_index=created,
                create_time=1_767_225_600_000_000_000 + place,
                modify_time=1_767_225_600_000_000_000 + place,
            )

    def placed(self) -> list[Change]:
        """A batch of new ones."""
        records = islice(self.records(is_running=False), BATCH_CHANGES)
        return [Change(ALLOCATIONS.name, record.id, encode(ALLOCATIONS, record)) for record in records]

    def started(self, batch: Batch) -> list[Change]:
        """Their nodes report that they run."""
        decode = msgspec.msgpack.Decoder(Allocation).decode
        changes = []
        for number, change in enumerate(batch.changes):
            assert change.data is not None
            running = msgspec.structs.replace(
                decode(change.data),
                client_status=ClientStatus.RUNNING,
                task_states={"server": a_running_task(number)},
                create_index=batch.index,
                alloc_modify_index=batch.index,
            )
            changes.append(Change(change.table, change.key, encode(ALLOCATIONS, running)))
        return changes

    def rows(self, count: int, with_states: bool) -> Iterator[list[Row]]:
        """In order of key, as SQLite and etcd give them: neighbours are of different jobs. Made as they are asked for."""
        jobs = [self.records(is_running=with_states, created=1 + job) for job in range(count // BATCH_CHANGES)]
        rows = []
        for number in range(count):
            job = self._random.randrange(len(jobs))
            bits = (number << 108) | self._random.getrandbits(107)
            record = msgspec.structs.replace(next(jobs[job]), id=str(uuid.UUID(int=bits, version=4)))
            rows.append(Row(ALLOCATIONS.name, record.id, 1 + job, encode(ALLOCATIONS, record)))
            if len(rows) == ROWS_AT_ONCE:
                yield rows
                rows = []
        yield rows


def a_running_task(number: int) -> TaskState:
    """No two have their times in common."""
    kinds = (TaskEventType.RECEIVED, TaskEventType.SETUP, TaskEventType.STARTED)
    events = tuple(
        TaskEvent(type=kind, time=1_767_225_600_000_000_000 + 1_000 * number + at) for at, kind in enumerate(kinds)
    )
    return TaskState(state=TaskStatus.RUNNING, events=events)


class Crowd:
    """Waiters as a busy cluster has them: every node, every job, many single records, a few tables and prefixes."""

    def __init__(self, replica: Replica, allocations: Allocations) -> None:
        self._subscriptions: list[Subscription] = []
        self._woken: list[Subscription] = []
        self._replica = replica
        for node in allocations.nodes:
            self._join(those(ALLOCATIONS_ON_NODE, node))
        for job in allocations.jobs:
            self._join(those(ALLOCATIONS_OF_JOB, "default", job))
        for number in range(1_000):
            self._join(one(ALLOCATIONS, f"waiter-{number}"))
        for prefix in ("00", "abcd"):
            self._join(beginning(ALLOCATIONS, prefix))
        self._join(whole(ALLOCATIONS))

    def _join(self, watched: Watched) -> None:
        holder: list[Subscription] = []
        holder.append(self._replica.watches.subscribe([watched], lambda: self._woken.append(holder[0])))
        self._subscriptions.append(holder[0])

    def rearm(self) -> None:
        for subscription in self._woken:
            subscription.rearm()
        self._woken.clear()


class Pause(NamedTuple):
    """How long a loop stood still. The processor's time leaves out what others on the same core took."""

    wall_ms: float
    processor_ms: float


class Stopwatch:
    def __init__(self) -> None:
        self._processor_s = time.thread_time()
        self._wall_s = time.perf_counter()

    def stop(self) -> Pause:
        wall_s = time.perf_counter() - self._wall_s
        return Pause(wall_s * 1_000, (time.thread_time() - self._processor_s) * 1_000)


def longest(pauses: Sequence[Pause], *, note: str = "") -> Figure:
    over = sum(pause.processor_ms > PAUSE_MS_MAX for pause in pauses)
    processor = f"longest by the processor's time {max(pause.processor_ms for pause in pauses):.1f} ms"
    notes = (processor, f"{over} of {len(pauses)} longer than {PAUSE_MS_MAX:.0f} ms by it", note)
    return Figure(
        value=max(pause.wall_ms for pause in pauses),
        unit="ms",
        at_most=PAUSE_MS_MAX,
        note=", ".join(filter(None, notes)),
    )


def resident_mb() -> float:
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
