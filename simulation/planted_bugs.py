"""Bugs that can be planted to test the simulation itself. It must detect each of them.

They change the simulated log, the watches of a replica, the disk of a node, its supervisor, or its addresses of servers.
They never change the product.
"""

import enum
import uuid
from collections.abc import Callable, Collection
from random import Random
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from simulation.cluster import Cluster, NodeHost, ServerProcess
from simulation.planted_lock_bugs import keep_locks, lose_locks
from simulation.planted_run_bugs import (
    ignore_conditions,
    ignore_needed_jobs,
    ignore_queue,
    launch_twice,
    lose_job_results,
    lose_outputs,
    replace_outputs,
)
from simulation.process import current_process
from simulation.record_history import RecordHistory
from wharf.cluster.engines.port import EncodedWrite, LogPosition
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica, Subscription, Table, WatchTarget
from wharf.cluster.state.codec import RecordDecoder, encode_record
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_OF_JOB, ARRAY_ATTEMPTS, ARRAY_RESULTS, JOBS, LEADER
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.jobs.array_attempts import OPEN, SUCCEEDED, ArrayAttempt
from wharf.contract.model.jobs.step_states import StepPhase, StepState
from wharf.contract.model.log import EncodedChange

R = TypeVar("R", bound=msgspec.Struct)
ALIVE_STATUSES: Final = (ClientStatus.PENDING, ClientStatus.RUNNING, ClientStatus.UNKNOWN)


class PlantedBug(enum.StrEnum):
    """The bugs, by the names of the option `--plant`."""

    DROPPED_CONDITION = "dropped-condition"
    MISSED_WAKE = "missed-wake"
    LOST_LEADER_CHECK = "lost-leader-check"
    SPLIT_BATCH = "split-batch"
    INDEX_BACK = "index-back"
    FORGETFUL_DISK = "forgetful-disk"
    GUESSED_OUTCOMES = "guessed-outcomes"
    SAME_SERVER = "same-server"
    LOST_LOCK = "lost-lock"
    KEPT_LOCK = "kept-lock"
    LOST_RESULT = "lost-result"
    ELEMENT_TWICE = "element-twice"
    EXCEEDED_LIMIT = "exceeded-limit"
    LATE_REPORT = "late-report"
    LOST_STEPS = "lost-steps"
    STEP_TWICE = "step-twice"
    SKIPPED_PASSES = "skipped-passes"
    EARLY_GATE = "early-gate"
    IGNORED_CONDITION = "ignored-condition"
    LOST_OUTPUTS = "lost-outputs"
    REPLACED_OUTPUTS = "replaced-outputs"
    IGNORED_JOB = "ignored-job"
    IGNORED_QUEUE = "ignored-queue"
    LOST_JOB_RESULT = "lost-job-result"
    SLOT_TWICE = "slot-twice"


BATCH_BUGS: Final = frozenset(
    {
        PlantedBug.LOST_RESULT, PlantedBug.ELEMENT_TWICE, PlantedBug.EXCEEDED_LIMIT, PlantedBug.LATE_REPORT,
        PlantedBug.LOST_STEPS, PlantedBug.STEP_TWICE, PlantedBug.SKIPPED_PASSES, PlantedBug.EARLY_GATE,
        PlantedBug.IGNORED_CONDITION, PlantedBug.LOST_OUTPUTS, PlantedBug.REPLACED_OUTPUTS, PlantedBug.IGNORED_JOB,
        PlantedBug.IGNORED_QUEUE, PlantedBug.LOST_JOB_RESULT, PlantedBug.SLOT_TWICE,
    }
)  # fmt: skip
"""The bugs of arrays, steps and flows. Seeds with only batch jobs detect them sooner."""


def plant_bug(bug: PlantedBug, cluster: Cluster) -> None:
    BUG_PLANTERS[bug](cluster)


def _drop_condition(cluster: Cluster) -> None:
    """Remove the condition on the version of the job from all writes."""
    cluster.log.alter_write = lambda write: [_remove_conditions(write, JOBS.name)]


def _lose_leader_check(cluster: Cluster) -> None:
    """Remove the condition on the leader record from all writes except those of the election."""
    cluster.log.alter_write = lambda write: [write if _is_election(write) else _remove_conditions(write, LEADER.name)]


def _is_election(write: EncodedWrite) -> bool:
    return any(change.table == LEADER.name for change in write.changes)


def _remove_conditions(write: EncodedWrite, table: str) -> EncodedWrite:
    return replace(write, conditions=[condition for condition in write.conditions if condition.table != table])


def _split_batch(cluster: Cluster) -> None:
    """Store 5 % of the writes with several changes as two batches."""
    draw = Random(f"{cluster.seed}/plant")

    def split(write: EncodedWrite) -> list[EncodedWrite]:
        if len(write.changes) < 2 or draw.random() > 0.05:
            return [write]
        middle = len(write.changes) // 2
        first = replace(write, changes=write.changes[:middle])
        return [first, replace(write, id=f"{write.id}+", conditions=(), changes=write.changes[middle:])]

    cluster.log.alter_write = split


def _miss_wakes(cluster: Cluster) -> None:
    """Do not wake 20 % of the subscribers."""
    draw = Random(f"{cluster.seed}/plant")
    old_on_started = cluster.on_started

    def on_started(process: ServerProcess, server: Server) -> None:
        old_on_started(process, server)
        watches = server.replica.watches
        subscribe = watches.subscribe

        def subscribe_unreliably(watched: list[WatchTarget], wake: Callable[[], None]) -> Subscription:
            return subscribe(watched, (lambda: None) if draw.random() < 0.2 else wake)

        watches.subscribe = subscribe_unreliably  # type: ignore[method-assign,assignment]  # the planted bug

    cluster.on_started = on_started


def _send_index_back(cluster: Cluster) -> None:
    """Return no last changes of tables from a full read, so that a replica that loads again has lower indexes."""
    log = cluster.log
    get_position = log.get_position

    def get_position_without_changes() -> LogPosition:
        return replace(get_position(), last_changes={})

    log.get_position = get_position_without_changes  # type: ignore[method-assign]  # the planted bug


def _lose_synced_data(cluster: Cluster) -> None:
    """Let the disks of nodes confirm each sync and store nothing."""
    for host in cluster.nodes:
        if host.machine is not None:
            host.machine.disk.is_losing_all = True


def _guess_outcomes(cluster: Cluster) -> None:
    """Let supervisors report success for every program that ended."""
    for host in cluster.nodes:
        if host.machine is not None:
            host.machine.is_guessing_outcomes = True


def _lead_to_same_server(cluster: Cluster) -> None:
    """Let all server addresses of a node lead to the same server, so that the node cannot fail over to another one."""
    make_address_choosers = cluster.make_address_choosers

    def make_same_choosers(node: NodeHost) -> list[Callable[[], str]]:
        choosers = make_address_choosers(node)
        return [choosers[0]] * len(choosers)

    cluster.make_address_choosers = make_same_choosers  # type: ignore[method-assign]  # the planted bug


# -- arrays ------------------------------------------------------------------------------------------------------------


def _alter_writes(cluster: Cluster, alter: Callable[[EncodedWrite, Random], list[EncodedWrite]]) -> None:
    """Change the writes of all processes."""
    draw = Random(f"{cluster.seed}/plant")
    cluster.log.alter_write = lambda write: alter(write, draw)


def _decode(cluster: Cluster, change: EncodedChange, table: Table[R]) -> R | None:
    """Return the record that a change of the next write stores in this table, or `None`."""
    if change.table != table.name or change.data is None:
        return None
    return RecordDecoder(table).decode_record(change.key, change.data, cluster.log.index + 1)


def _add_write(write: EncodedWrite, name: str, *changes: EncodedChange) -> list[EncodedWrite]:
    """Return the write, and a second one without conditions."""
    return [write, replace(write, id=f"{write.id}+{name}", kind=f"planted-{name}", conditions=(), changes=changes)]


def _encode(table: Table[R], record: R) -> EncodedChange:
    return EncodedChange(table.name, table.get_key(record), encode_record(table, record))


def _lose_results(cluster: Cluster) -> None:
    """Keep results beside the log: a server process that was restarted writes none of them any more."""

    def lose(write: EncodedWrite, _draw: Random) -> list[EncodedWrite]:
        process = current_process()
        if write.kind != "node-reported" or process is None or process.name.endswith("#1"):
            return [write]
        return [replace(write, changes=[each for each in write.changes if each.table != ARRAY_RESULTS.name])]

    _alter_writes(cluster, lose)


def _place_more(cluster: Cluster, choose_name: Callable[[Allocation, Collection[str]], str]) -> None:
    """Place further elements of arrays together with those that the scheduler places.

    `choose_name` returns the name of the further one, from the placed one and the names that are in use; or nothing.
    """
    replica = _get_replica(cluster)

    def place(write: EncodedWrite, draw: Random) -> list[EncodedWrite]:
        copies = []
        stored = [record for change in write.changes if (record := _decode(cluster, change, ALLOCATIONS)) is not None]
        used = {each.name for each in stored}
        for placed in stored:
            if not placed.array_attempt or replica.get(ALLOCATIONS, placed.id) is not None:
                continue
            others = replica.list_by_index(ALLOCATIONS_OF_JOB, placed.namespace, placed.job_id)
            used |= {each.name for each in others if each.client_status in ALIVE_STATUSES}
            if (name := choose_name(placed, used)) and draw.random() < 0.3:
                copy_id = str(uuid.UUID(int=draw.getrandbits(128)))
                copies.append(_encode(ALLOCATIONS, replace(placed, id=copy_id, name=name, allocated_resources=None)))
                used.add(name)
        return _add_write(write, "placed", *copies) if copies else [write]

    _alter_writes(cluster, place)


def _run_element_twice(cluster: Cluster) -> None:
    """Place some elements of arrays twice."""
    _place_more(cluster, lambda placed, _used: placed.name)


def _exceed_limit(cluster: Cluster) -> None:
    """Count the running elements of each attempt alone: one more element runs after a rerun."""

    def choose_name(placed: Allocation, used: Collection[str]) -> str:
        if placed.array_attempt == 1:
            return ""
        names = (f"{placed.name.rpartition('[')[0]}[{index}]" for index in range(12))
        return next((name for name in names if name not in used), "")

    _place_more(cluster, choose_name)


def _accept_late_reports(cluster: Cluster) -> None:
    """Let a late report of an earlier attempt decide about an element that has just begun to run again."""

    def accept(write: EncodedWrite, _draw: Random) -> list[EncodedWrite]:
        if write.kind != "job-rerun":
            return [write]
        found = [record for change in write.changes if (record := _decode(cluster, change, ARRAY_RESULTS)) is not None]
        late = [
            replace(each, results=each.results.replace(OPEN, SUCCEEDED, 1)) for each in found if OPEN in each.results
        ]
        return _add_write(write, "late", *(_encode(ARRAY_RESULTS, each) for each in late[:1]))

    _alter_writes(cluster, accept)


# -- steps -------------------------------------------------------------------------------------------------------------


def _get_replica(cluster: Cluster) -> Replica:
    """Return the state of the log, as its observer has it."""
    assert isinstance(cluster.log.observer, RecordHistory), "the history of records observes the log"
    return cluster.log.observer.replica


def _change_steps(attempt: ArrayAttempt, change_step: Callable[[StepState], StepState]) -> ArrayAttempt:
    """Return the attempt with other states of its steps; the same object if none changes."""
    groups = {
        name: replace(part, step=change_step(part.step)) if part.step is not None else part
        for name, part in attempt.groups.items()
    }
    return replace(attempt, groups=groups) if groups != attempt.groups else attempt


def _alter_steps(cluster: Cluster, change_step: Callable[[StepState], StepState]) -> None:
    """Change the states of steps after each write that stores them."""

    def alter(write: EncodedWrite, _draw: Random) -> list[EncodedWrite]:
        stored = [
            attempt for change in write.changes if (attempt := _decode(cluster, change, ARRAY_ATTEMPTS)) is not None
        ]
        changed = [(each, _change_steps(each, change_step)) for each in stored]
        changes = [_encode(ARRAY_ATTEMPTS, new) for old, new in changed if new is not old]
        return _add_write(write, "changed", *changes) if changes else [write]

    _alter_writes(cluster, alter)


def _end_waiting(step: StepState) -> StepState:
    return replace(step, phase=StepPhase.READY) if step.phase is StepPhase.WAITING else step


def _lose_steps(cluster: Cluster) -> None:
    """Keep the states of steps beside the log: after each election, no step waits for anything."""
    replica = _get_replica(cluster)

    def lose(write: EncodedWrite, _draw: Random) -> list[EncodedWrite]:
        if write.kind != "leader-elected":
            return [write]
        changed = [(each, _change_steps(each, _end_waiting)) for each in replica.iter_all(ARRAY_ATTEMPTS)]
        changes = [_encode(ARRAY_ATTEMPTS, new) for old, new in changed if new is not old]
        return _add_write(write, "lost", *changes) if changes else [write]

    _alter_writes(cluster, lose)


def _run_steps_twice(cluster: Cluster) -> None:
    """Open a step again after each of its successes."""
    replica = _get_replica(cluster)

    def reopen(write: EncodedWrite, draw: Random) -> list[EncodedWrite]:
        for change in write.changes:
            results = _decode(cluster, change, ARRAY_RESULTS)
            job = replica.get(JOBS, results.namespace, results.job_id) if results is not None else None
            if results is None or job is None or not job.is_run or SUCCEEDED not in results.results:
                continue
            if draw.random() < 0.3:
                opened = replace(results, results=results.results.replace(SUCCEEDED, OPEN, 1))
                return _add_write(write, "opened", _encode(ARRAY_RESULTS, opened))
        return [write]

    _alter_writes(cluster, reopen)


def _pass_skipped(cluster: Cluster) -> None:
    """Take a skipped step for one that has passed, so that the steps after it begin."""
    _alter_steps(
        cluster,
        lambda step: (
            replace(step, phase=StepPhase.READY, cause=None)
            if step.phase is StepPhase.SKIPPED and step.cause is not None and step.cause.kind == "need"
            else step
        ),
    )


def _open_gates(cluster: Cluster) -> None:
    """Begin steps with a gate as soon as a user could answer it."""
    _alter_steps(cluster, lambda step: replace(step, phase=StepPhase.READY) if step.phase is StepPhase.GATED else step)


BUG_PLANTERS: Final[dict[PlantedBug, Callable[[Cluster], None]]] = {
    PlantedBug.DROPPED_CONDITION: _drop_condition,
    PlantedBug.MISSED_WAKE: _miss_wakes,
    PlantedBug.LOST_LEADER_CHECK: _lose_leader_check,
    PlantedBug.SPLIT_BATCH: _split_batch,
    PlantedBug.INDEX_BACK: _send_index_back,
    PlantedBug.FORGETFUL_DISK: _lose_synced_data,
    PlantedBug.GUESSED_OUTCOMES: _guess_outcomes,
    PlantedBug.SAME_SERVER: _lead_to_same_server,
    PlantedBug.LOST_LOCK: lose_locks,
    PlantedBug.KEPT_LOCK: keep_locks,
    PlantedBug.LOST_RESULT: _lose_results,
    PlantedBug.ELEMENT_TWICE: _run_element_twice,
    PlantedBug.EXCEEDED_LIMIT: _exceed_limit,
    PlantedBug.LATE_REPORT: _accept_late_reports,
    PlantedBug.LOST_STEPS: _lose_steps,
    PlantedBug.STEP_TWICE: _run_steps_twice,
    PlantedBug.SKIPPED_PASSES: _pass_skipped,
    PlantedBug.EARLY_GATE: _open_gates,
    PlantedBug.IGNORED_CONDITION: ignore_conditions,
    PlantedBug.LOST_OUTPUTS: lose_outputs,
    PlantedBug.REPLACED_OUTPUTS: replace_outputs,
    PlantedBug.IGNORED_JOB: ignore_needed_jobs,
    PlantedBug.IGNORED_QUEUE: ignore_queue,
    PlantedBug.LOST_JOB_RESULT: lose_job_results,
    PlantedBug.SLOT_TWICE: launch_twice,
}
