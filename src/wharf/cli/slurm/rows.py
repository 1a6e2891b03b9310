"""The lines of `squeue` and `sacct`: one for each run of a job, and one for the runs of an array that have not begun.

Pure: jobs and allocations go in. States, and where each comes from, are in docs/from-slurm.md.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from wharf.cli.common.allocation_selection import get_index, get_natural_order, select_newest
from wharf.cli.common.times import to_nanoseconds
from wharf.contract.client.batch.array_indexes import format_indexes
from wharf.contract.model.allocations.failure_reasons import describe_failure

if TYPE_CHECKING:
    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.model.jobs.array_views import ArrayView
    from wharf.contract.model.jobs.groups import TaskGroup
    from wharf.contract.model.jobs.job import Job
    from wharf.contract.model.jobs.run_views import StepView

COMPACT_STATES: Final = {
    "PENDING": "PD",
    "CONFIGURING": "CF",
    "RUNNING": "R",
    "COMPLETING": "CG",
    "COMPLETED": "CD",
    "CANCELLED": "CA",
    "FAILED": "F",
    "TIMEOUT": "TO",
    "DEADLINE": "DL",
    "OUT_OF_MEMORY": "OOM",
    "NODE_FAIL": "NF",
    "PREEMPTED": "PR",
}
"""Slurm's states, with their short forms."""
LIVE_STATES: Final = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"})
_STATE_BY_LETTER: Final = {
    "p": "CONFIGURING",
    "r": "RUNNING",
    "s": "COMPLETED",
    "f": "FAILED",
    "c": "CANCELLED",
    "x": "CANCELLED",  # Skipped: Slurm has no state for it.
}
"""The letters of elements in the API of arrays; `.` is an element that waits."""
_NEVER_BEGAN_LETTERS: Final = frozenset("cx")
_HELD_STATUSES: Final = frozenset({"waiting", "gated"})
"""States of steps whose elements may not begin yet."""
_SHORT_STATE: Final = re.compile(r"(\d*)([a-z.-])")
_OVERDUE_TEXT: Final = "max_run_duration"
_OUT_OF_MEMORY_DETAIL: Final = "oom_killed"
"""The detail of an end that says that the kernel killed the program for lack of memory. Its message does not."""
_STOP_EVENTS: Final = frozenset({"Killing", "Killed"})
_SIGNAL_EVENT: Final = "Signaling"
_END_SIGNALS: Final = frozenset({"SIGTERM", "SIGKILL"})
"""Signals with which `scancel` ends single runs."""


class Row(NamedTuple):
    """One run of a job, or the runs of an array that have not begun, or of which servers keep only the state."""

    job_id: str
    label: str = ""
    """The index as the user wrote it; `[4-9%2]` for several runs; empty for a job with one run."""
    members: tuple[int, ...] = ()
    """The indexes of several runs."""
    name: str = ""
    user: str = ""
    account: str = ""
    qos: str = ""
    partition: str = ""
    state: str = "PENDING"
    exit_code: str = "0:0"
    node: str = ""
    reason: str = ""
    cores: int = 1
    memory_mb: int = 0
    time_limit_ns: int = 0
    priority: int = 0
    comment: str = ""
    work_folder: str = ""
    submit_ns: int = 0
    start_ns: int = 0
    end_ns: int = 0
    namespace: str = ""
    region: str = ""
    alloc_id: str = ""

    @property
    def id(self) -> str:
        """The id as Slurm writes it, such as `4711_3`."""
        return f"{self.job_id}_{self.label}" if self.label else self.job_id

    def get_elapsed_ns(self, now_ns: int) -> int:
        return max((self.end_ns or now_ns) - self.start_ns, 0) if self.start_ns else 0


def build_rows(
    job: "Job",
    allocations: "Iterable[AllocationStub]",
    arrays: "Iterable[ArrayView]" = (),
    steps: "Mapping[str, StepView] | None" = None,
    submit_ns: int = 0,
) -> list[Row]:
    """Return the lines of one job: runs that have not begun first, then the others by their index.

    `arrays` are the states of the elements of its arrays. They count for elements whose allocation was deleted, or that
    run again. `steps` are the steps of a run, by name: they say why elements never began. `submit_ns` is the time of the
    submission if it is not that of `job`: a stop is a version with a time of its own.
    """
    states_by_group = {array.group: expand_states(array.states) for array in arrays}
    newest = select_newest(allocations)
    rows: list[Row] = []
    for group in job.groups:
        base = _build_base(job, group)
        if submit_ns:
            base = base._replace(submit_ns=submit_ns)
        step = (steps or {}).get(group.name)
        own = [each for each in newest if each.task_group == group.name]
        labels = () if _is_single_step(job, group) else _list_labels(group)
        states = states_by_group.get(group.name, "")
        own = [each for each in own if not _is_superseded(states, get_index(each))]
        waiting = _find_waiting_row(job, group, base, own, labels, states)
        if waiting is not None:
            if step is not None and step.status in _HELD_STATUSES:
                waiting = waiting._replace(reason=step.text)
            rows.append(waiting)
        known = {get_index(each) for each in own}
        own_rows = [_build_row(job, group, base, each, labels) for each in sorted(own, key=get_natural_order)]
        rows += [_note_deadline(row, step) for row in own_rows]
        for letter, state in _STATE_BY_LETTER.items():
            ended = [index for index, each in enumerate(states) if each == letter and index not in known]
            row = base._replace(state=state)
            if step is not None and letter in _NEVER_BEGAN_LETTERS:
                row = row._replace(state=find_step_state(step), reason=step.text, end_ns=step.ended_at)
            rows += [_join_runs(job, group, row, labels, ended)] if ended else []
    return rows


def find_step_state(step: "StepView") -> str:
    """Return the state of a step whose elements never began, in Slurm's words."""
    cause = step.cause
    if cause is not None and (cause.kind == "deadline" or (cause.kind == "gate" and not cause.actor)):
        return "DEADLINE"  # The run took too long, or nobody answered the gate in time.
    return "FAILED" if step.status == "failed" else "CANCELLED"


def _note_deadline(row: Row, step: "StepView | None") -> Row:
    """Return the line of a run that was stopped because of the deadline of its flow with that state."""
    is_over = step is not None and step.cause is not None and step.cause.kind == "deadline"
    return row._replace(state="DEADLINE") if is_over and row.state == "CANCELLED" else row


def expand_states(text: str) -> str:
    """Return a letter for each element, of the short form of states such as `3s1f6r490.`."""
    return "".join(letter * int(count or 1) for count, letter in _SHORT_STATE.findall(text))


def _is_superseded(states: str, index: int) -> bool:
    """Whether an element waits for a new run, so that its allocation is that of an earlier one."""
    return 0 <= index < len(states) and states[index] == "."


def _build_base(job: "Job", group: "TaskGroup") -> Row:
    meta = job.meta or {}
    tasks = group.tasks or ()
    config = (tasks[0].config or {}) if tasks else {}
    return Row(
        job.id,
        name=job.name or job.id,
        user=meta.get("submit_user", ""),
        account=meta.get("account", ""),
        qos=meta.get("qos", ""),
        partition=job.node_pool or "default",
        cores=sum(task.resources.cores for task in tasks) or 1,
        memory_mb=sum(task.resources.memory_mb for task in tasks),
        time_limit_ns=group.max_run_duration or 0,
        priority=job.priority,
        comment=job.ui.description if job.ui is not None else "",
        work_folder=str(config.get("work_dir") or ""),
        submit_ns=job.submit_time,
        namespace=job.namespace,
        region=job.region or "global",
    )


def count_runs(group: "TaskGroup") -> int:
    """Return how many runs a group has."""
    return group.array.element_count if group.array is not None else group.count


def _list_labels(group: "TaskGroup") -> Sequence[str]:
    """Return the indexes of the runs as the user wrote them; empty if the job has one run without an index."""
    if group.array is None:
        return () if group.count <= 1 else [str(index) for index in range(group.count)]
    items = group.array.items
    if items and all(item.isascii() and item.isdecimal() for item in items):
        return items
    return [str(index) for index in range(group.array.element_count)]


def _is_single_step(job: "Job", group: "TaskGroup") -> bool:
    """Return whether a group is a step that runs once: it is stored as an array of one element."""
    array = group.array
    return job.has_steps and array is not None and array.element_count == 1 and not array.items


def find_index(group: "TaskGroup", label: str) -> int | None:
    """Return the position of the run that the user calls `label`; None if there is none."""
    labels = _list_labels(group)
    if group.array is None or not group.array.items:
        return int(label) if label.isdecimal() and int(label) < len(labels) else None
    return next((position for position, each in enumerate(labels) if each == label), None)


def _find_waiting_row(
    job: "Job", group: "TaskGroup", base: Row, own: "Sequence[AllocationStub]", labels: Sequence[str], states: str
) -> Row | None:
    """Return the line of the runs that have no allocation; None if every run has one."""
    started_indexes = {get_index(allocation) for allocation in own}
    missing = [
        index
        for index in range(count_runs(group))
        if index not in started_indexes and (index >= len(states) or states[index] == ".")
    ]
    if not missing:
        return None
    if job.stop:
        return None if own else base._replace(state="CANCELLED", end_ns=job.submit_time)
    if job.status == "dead":
        return None
    return _join_runs(job, group, base, labels, missing)


def _join_runs(job: "Job", group: "TaskGroup", base: Row, labels: Sequence[str], indexes: Sequence[int]) -> Row:
    """Return one line for several runs, with their indexes as Slurm writes them: `[4-9%2]`.

    In a job of several groups, the name of the group stands before the indexes, as in the lines of single runs. A group
    that runs once has no `labels`.
    """
    prefix = group.name if len(job.groups) > 1 else ""
    if not labels:
        return base._replace(label=f"{prefix}[{indexes[0]}]" if prefix else "")
    members = tuple(int(labels[index]) for index in indexes)
    max_running = group.array.max_running if group.array is not None else 0
    limit = f"%{max_running}" if max_running and base.state == "PENDING" else ""
    return base._replace(label=f"{prefix}[{format_indexes(members)}{limit}]", members=members)


def _build_row(job: "Job", group: "TaskGroup", base: Row, allocation: "AllocationStub", labels: Sequence[str]) -> Row:
    index = get_index(allocation)
    label = labels[index] if 0 <= index < len(labels) else ""
    if len(job.groups) > 1:
        label = f"{group.name}[{index}]"
    states = (allocation.task_states or {}).values()
    starts = [to_nanoseconds(state.started_at) for state in states if state.started_at is not None]
    ends = [to_nanoseconds(state.finished_at) for state in states if state.finished_at is not None]
    is_over = allocation.client_status.is_terminal
    return base._replace(
        label=label,
        state=find_state(job, allocation),
        exit_code=_find_exit_code(allocation),
        node=allocation.node_name,
        start_ns=min(starts, default=0),
        end_ns=(max(ends, default=0) or allocation.modify_time) if is_over else 0,
        reason=(describe_failure(allocation) or allocation.client_description)
        if allocation.client_status == "failed"
        else "",
        alloc_id=allocation.id,
    )


def find_state(job: "Job", allocation: "AllocationStub") -> str:
    """Return the state of an allocation in Slurm's words."""
    status, is_stopping = allocation.client_status, allocation.desired_status != "run"
    if status == "pending":
        return "CONFIGURING"
    if status == "unknown":
        return "RUNNING"
    if status == "running":
        return "COMPLETING" if is_stopping else "RUNNING"
    if allocation.desired_status == "evict":
        return "PREEMPTED"
    if status == "lost":
        return "NODE_FAIL"
    events = [event for state in (allocation.task_states or {}).values() for event in state.events or ()]
    if status == "failed":
        if _OVERDUE_TEXT in allocation.client_description:
            return "TIMEOUT"
        if any((event.details or {}).get(_OUT_OF_MEMORY_DETAIL) == "true" for event in events):
            return "OUT_OF_MEMORY"
    was_stopped = is_stopping and any(event.type in _STOP_EVENTS for event in events)
    was_stopped = was_stopped or any(
        event.type == _SIGNAL_EVENT and (event.details or {}).get("signal") in _END_SIGNALS for event in events
    )
    if was_stopped or (is_stopping and job.stop and not events):
        return "CANCELLED"
    return "FAILED" if status == "failed" else "COMPLETED"


def _find_exit_code(allocation: "AllocationStub") -> str:
    """Return the exit code and the signal of the task that ended last, as Slurm writes them."""
    ends = [
        (event.time, event.exit_code, event.signal)
        for state in (allocation.task_states or {}).values()
        for event in state.events or ()
        if event.type == "Terminated"
    ]
    if not ends:
        return "0:0"
    _, code, signal = max(ends)
    return f"0:{signal}" if signal else f"{code}:0"
