"""Rules for the steps of a run, for the needs between them, and for the needs of a job."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from wharf.contract.model.body_limits import MAX_NAME_BYTES
from wharf.contract.model.jobs import defaults
from wharf.contract.model.jobs.group_policies import RestartPolicy
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.jobs.steps import (
    MAX_ALL_NEEDS,
    MAX_NEEDS,
    MAX_STEPS,
    FlowOverlap,
    Gate,
    Lock,
    LockPolicy,
    Need,
    NeedWhen,
    Outputs,
    StepRetry,
)
from wharf.contract.model.jobs.validation.findings import ValidationReport, suggest_one_of
from wharf.contract.model.times import SECOND, format_duration
from wharf.languages.suggestions import find_nearest_name

HOUR_NS: Final = 3_600 * SECOND
MAX_CONDITION_BYTES: Final = 4_096
"""UTF-8 bytes of a condition `If`; limits the time of parsing and evaluating it."""
MAX_ALL_CONDITION_BYTES: Final = 64 * 1024
"""UTF-8 bytes of the conditions of all steps of a job. Parsing them takes up to 0.1 s."""
MAX_QUESTION_BYTES: Final = 1_024
MAX_GATE_TIMEOUT_NS: Final = 720 * HOUR_NS
MAX_LOCK_KEY_BYTES: Final = 128
MAX_LOCK_SLOTS: Final = 10_000
MAX_KEPT_PATHS: Final = 100
MAX_KEPT_PATH_BYTES: Final = 1_024
MAX_RETRIES: Final = 100
MAX_EXIT_CODES: Final = 100
MAX_EXIT_CODE: Final = 255
MAX_DEADLINE_NS: Final = 8_760 * HOUR_NS
MAX_FINAL_TIMEOUT_NS: Final = 24 * HOUR_NS
MAX_SHOWN_CIRCLE: Final = 10
"""Steps that the error about a circle names."""
WHEN_WORDS: Final = tuple(str(word) for word in NeedWhen)
LOCK_POLICIES: Final = tuple(str(word) for word in LockPolicy)
OVERLAPS: Final = tuple(str(word) for word in FlowOverlap)


# -- one step ----------------------------------------------------------------------------------------------------------


def check_step(group: TaskGroup, path: str, report: ValidationReport, *, job_type: str) -> None:
    """Add each problem of the fields that make a group a step to the report. `path` is the path of the group.

    The needs are compared with the other steps in `check_run`.
    """
    if not group.is_step:
        return
    if job_type != JobType.BATCH:
        for name in _list_step_fields(group):
            report.add_error(f"{path}.{name}", f"{name} can only be used with batch jobs, not with {job_type} jobs")
    _check_needs(group.depends or (), path, report)
    _check_condition(group.condition, f"{path}.If", report)
    if group.final:
        _check_final(group, path, report)
    if group.gate is not None:
        _check_gate(group.gate, f"{path}.Gate", report)
    if group.lock is not None:
        _check_lock(group.lock, f"{path}.Lock", report)
    if group.outputs is not None:
        _check_outputs(group.outputs, f"{path}.Outputs", report)
    if group.retry is not None:
        _check_retry(group.retry, f"{path}.Retry", report)
        _check_other_retries(group, path, report, job_type)


def _list_step_fields(group: TaskGroup) -> Iterator[str]:
    """Yield the names of the fields that make the group a step."""
    values: tuple[tuple[str, Any], ...] = (
        ("Depends", group.depends),
        ("If", group.condition),
        ("MayFail", group.may_fail),
        ("Final", group.final),
        ("Gate", group.gate is not None),
        ("Lock", group.lock is not None),
        ("Outputs", group.outputs is not None),
        ("Retry", group.retry is not None),
    )
    return (name for name, value in values if value)


def _check_needs(needs: Sequence[Need], path: str, report: ValidationReport) -> None:
    """Add each problem of needs to the report that concerns one of them, or two that name the same."""
    if len(needs) > MAX_NEEDS:
        report.add_error(
            f"{path}.Depends" if path else "Depends",
            f"Depends has {len(needs)} needs; the limit is {MAX_NEEDS}",
            "let one step without work need them, and depend on that step" if path else "",
        )
    first_of_name: dict[str, int] = {}
    for need_path, position, need in _iterate_needs(needs, path):
        if not need.on:
            report.add_error(f"{need_path}.On", "The need names nothing", "set On")
        elif (first := first_of_name.setdefault(need.on, position)) != position:
            report.add_error(
                f"{need_path}.On",
                f'"{need.on}" is needed twice: need {position + 1} repeats need {first + 1}',
                "remove one of them",
            )
        if need.when not in WHEN_WORDS:
            report.add_error(f"{need_path}.When", f'Unknown word "{need.when}"', suggest_one_of(WHEN_WORDS, need.when))
        if need.at_least < 0:
            report.add_error(f"{need_path}.AtLeast", f"AtLeast must not be negative; got {need.at_least}")
        if need.each and need.at_least:
            report.add_error(
                f"{need_path}.AtLeast",
                "AtLeast cannot be used with Each: each element then waits for one other element",
                "remove one of them",
            )


def _iterate_needs(needs: Iterable[Need], path: str) -> Iterator[tuple[str, int, Need]]:
    """Yield each need with its path and its position. `path` is the path of the group; empty for the job."""
    prefix = f"{path}.Depends" if path else "Depends"
    for position, need in enumerate(needs):
        yield f"{prefix}[{position}]", position, need


def _check_condition(condition: str, path: str, report: ValidationReport) -> None:
    """Add an error to the report if a condition is too long. `step_outputs` checks what it reads."""
    size = _count_bytes(condition)
    if size > MAX_CONDITION_BYTES:
        report.add_error(path, f"The condition is {size} bytes long; the limit is {MAX_CONDITION_BYTES} bytes")


def _check_final(group: TaskGroup, path: str, report: ValidationReport) -> None:
    """Add an error to the report for each field that has no meaning together with Final."""
    if group.gate is not None:
        report.add_error(
            f"{path}.Gate", "Gate cannot be used with Final: the step must also run when the run was canceled"
        )
    for need_path, _, need in _iterate_needs(group.depends or (), path):
        for name, is_set in (
            ("When", need.when in (NeedWhen.FAILED, NeedWhen.ENDED)),
            ("Each", need.each),
            ("AtLeast", need.at_least > 0),
            ("Optional", need.optional),
        ):
            if is_set:
                report.add_error(
                    f"{need_path}.{name}",
                    f"{name} cannot be used with Final: its needs hold however the needed steps ended",
                    f"remove {name}",
                )


def _check_gate(gate: Gate, path: str, report: ValidationReport) -> None:
    """Add each problem of a gate to the report."""
    _check_text(gate.ask, f"{path}.Ask", MAX_QUESTION_BYTES, report)
    _check_text(gate.policy, f"{path}.Policy", MAX_NAME_BYTES, report)
    _check_duration(gate.timeout, f"{path}.Timeout", MAX_GATE_TIMEOUT_NS, report)


def _check_lock(lock: Lock, path: str, report: ValidationReport) -> None:
    """Add each problem of a lock to the report."""
    if not lock.key:
        report.add_error(f"{path}.Key", "The lock has no key", "set Key")
    _check_text(lock.key, f"{path}.Key", MAX_LOCK_KEY_BYTES, report)
    if not 1 <= lock.slots <= MAX_LOCK_SLOTS:
        report.add_error(f"{path}.Slots", f"Slots must be between 1 and {MAX_LOCK_SLOTS}; got {lock.slots}")
    if lock.policy not in LOCK_POLICIES:
        report.add_error(
            f"{path}.Policy", f'Unknown policy "{lock.policy}"', suggest_one_of(LOCK_POLICIES, lock.policy)
        )


def _check_outputs(outputs: Outputs, path: str, report: ValidationReport) -> None:
    """Add each problem of the kept paths to the report. `step_outputs` checks the names of texts."""
    paths = outputs.keep or ()
    if len(paths) > MAX_KEPT_PATHS:
        report.add_error(f"{path}.Keep", f"Keep has {len(paths)} paths; the limit is {MAX_KEPT_PATHS}")
    for position, kept_path in enumerate(paths[:MAX_KEPT_PATHS]):
        _check_kept_path(kept_path, f"{path}.Keep[{position}]", report)


def _check_kept_path(kept_path: str, path: str, report: ValidationReport) -> None:
    """Add an error to the report if a path is not inside of the folder `alloc/`."""
    _check_text(kept_path, path, MAX_KEPT_PATH_BYTES, report)
    parts = kept_path.split("/")
    if not kept_path.strip("/."):
        report.add_error(
            path, f'The path "{kept_path}" names no file or folder', "write a path below alloc/, such as data/"
        )
    elif kept_path.startswith("/") or ".." in parts:
        report.add_error(
            path,
            f'The path "{kept_path}" can be outside of the folder alloc/',
            "write a path below alloc/, such as data/, without a leading slash and without ..",
        )


def _check_retry(retry: StepRetry, path: str, report: ValidationReport) -> None:
    """Add each problem of a retry block to the report."""
    if not 0 <= retry.attempts <= MAX_RETRIES:
        report.add_error(f"{path}.Attempts", f"Attempts must be between 0 and {MAX_RETRIES}; got {retry.attempts}")
    if retry.on_exit and retry.not_on_exit:
        report.add_error(f"{path}.NotOnExit", "OnExit and NotOnExit cannot be used together", "remove one of them")
    for name, codes in (("OnExit", retry.on_exit or ()), ("NotOnExit", retry.not_on_exit or ())):
        if len(codes) > MAX_EXIT_CODES:
            report.add_error(f"{path}.{name}", f"{name} has {len(codes)} codes; the limit is {MAX_EXIT_CODES}")
        for position, code in enumerate(codes[:MAX_EXIT_CODES]):
            if not 1 <= code <= MAX_EXIT_CODE:
                report.add_error(
                    f"{path}.{name}[{position}]",
                    f"{code} is not an exit code of a failure: they are from 1 to {MAX_EXIT_CODE}",
                )


def _check_other_retries(group: TaskGroup, path: str, report: ValidationReport, job_type: str) -> None:
    """Add an error to the report for each other policy of retries that the user wrote.

    Without a policy of its own, a step with Retry has no restarts. A rescheduling policy with only default values cannot be
    told from one that the canonical form filled in.
    """
    fix = "remove it: Retry decides which failures are tried again"
    if _restarts(group.restart_policy):
        report.add_error(f"{path}.RestartPolicy", "RestartPolicy cannot be used with Retry", fix)
    if group.reschedule_policy not in (None, defaults.RESCHEDULE_POLICIES.get(job_type)):
        report.add_error(f"{path}.ReschedulePolicy", "ReschedulePolicy cannot be used with Retry", fix)
    for position, task in enumerate(group.tasks or ()):
        if _has_own_restarts(task, group):
            report.add_error(
                f"{path}.Tasks[{position}].RestartPolicy", "RestartPolicy cannot be used with Retry of the group", fix
            )


def _restarts(policy: RestartPolicy | None) -> bool:
    return policy is not None and policy.attempts > 0


def _has_own_restarts(task: Task, group: TaskGroup) -> bool:
    """Return whether a main task has another restart policy than its group. Sidecars and hooks restart by their own."""
    is_own = task.lifecycle is None and task.restart_policy != group.restart_policy
    return is_own and _restarts(task.restart_policy)


def _check_text(text: str, path: str, max_bytes: int, report: ValidationReport) -> None:
    """Add an error to the report if a text is too long or has a null character."""
    size = _count_bytes(text)
    if size > max_bytes:
        report.add_error(path, f"The text is {size} bytes long; the limit is {max_bytes} bytes")
    elif "\x00" in text:
        report.add_error(path, "The text contains a null character")


def _check_duration(duration_ns: int, path: str, max_ns: int, report: ValidationReport) -> None:
    """Add an error to the report if a duration is negative or too long."""
    if not 0 <= duration_ns <= max_ns:
        report.add_error(
            path, f"The duration must be between 0s and {max_ns // HOUR_NS}h; got {format_duration(duration_ns)}"
        )


def _count_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


# -- all steps of a job ------------------------------------------------------------------------------------------------


def check_run(job: Job, report: ValidationReport) -> None:
    """Add each problem to the report that concerns the steps of a job together, or the needs and the flow of the job."""
    if not job.has_steps:
        return
    if job.type != JobType.BATCH:
        for name, is_set in (("Depends", bool(job.depends)), ("Flow", job.flow is not None)):
            if is_set:
                report.add_error(name, f"{name} can only be used with batch jobs, not with {job.type} jobs")
    _check_job_needs(job, report)
    _check_flow(job, report)
    groups = job.groups
    if len(groups) > MAX_STEPS:
        report.add_error("TaskGroups", f"The job has {len(groups)} steps; the limit is {MAX_STEPS}", "use an Array")
        return
    need_count = sum(len(group.depends or ()) for group in groups)
    if need_count > MAX_ALL_NEEDS:
        report.add_error(
            "TaskGroups",
            f"All steps have {need_count} needs together; the limit is {MAX_ALL_NEEDS}",
            "let one step without work need many, and depend on that step",
        )
        return
    condition_bytes = _count_condition_bytes(job)
    if condition_bytes > MAX_ALL_CONDITION_BYTES:
        report.add_error(
            "TaskGroups",
            f"The conditions of all steps are {condition_bytes} bytes long together; the limit is {MAX_ALL_CONDITION_BYTES}",
        )
    for position, group in enumerate(groups):
        if job.type == JobType.BATCH and group.array is None:
            report.add_error(
                f"TaskGroups[{position}].Count",
                f"Count must be 1 for a step of a run; got {group.count}",
                f"write an Array with the Size {group.count}" if group.count > 1 else "",
            )
    _check_needed_steps(groups, report)
    _check_circles(groups, report)


def _count_condition_bytes(job: Job) -> int:
    """Return how many UTF-8 bytes the conditions of all steps have together."""
    return sum(_count_bytes(group.condition) for group in job.groups)


def has_checkable_conditions(job: Job) -> bool:
    """Return whether a job is within the limits that bound the time of checking its conditions and references."""
    groups = job.groups
    return (
        len(groups) <= MAX_STEPS
        and sum(len(group.depends or ()) for group in groups) <= MAX_ALL_NEEDS
        and all(_count_bytes(group.condition) <= MAX_CONDITION_BYTES for group in groups)
        and _count_condition_bytes(job) <= MAX_ALL_CONDITION_BYTES
    )


def _check_job_needs(job: Job, report: ValidationReport) -> None:
    """Add each problem of the needs of a job to the report. Whether the other jobs exist is decided at registration."""
    _check_needs(job.depends or (), "", report)
    for path, _, need in _iterate_needs(job.depends or (), ""):
        _check_text(need.on, f"{path}.On", MAX_NAME_BYTES, report)
        if need.on and need.on == job.id:
            report.add_error(f"{path}.On", "The job needs itself", "name another job")
        for name, is_set in (("Each", need.each), ("AtLeast", need.at_least > 0)):
            if is_set:
                report.add_error(
                    f"{path}.{name}", f"{name} can only be used between steps of one job", f"remove {name}"
                )


def _check_flow(job: Job, report: ValidationReport) -> None:
    """Add each problem of the settings of runs to the report."""
    flow = job.flow
    if flow is None:
        return
    _check_duration(flow.deadline, "Flow.Deadline", MAX_DEADLINE_NS, report)
    _check_duration(flow.final_timeout, "Flow.FinalTimeout", MAX_FINAL_TIMEOUT_NS, report)
    if not flow.overlap:
        return
    if flow.overlap not in OVERLAPS:
        report.add_error("Flow.Overlap", f'Unknown rule "{flow.overlap}"', suggest_one_of(OVERLAPS, flow.overlap))
    elif job.periodic is not None and job.periodic.prohibit_overlap and flow.overlap != FlowOverlap.SKIP:
        report.add_error(
            "Flow.Overlap",
            f'Overlap "{flow.overlap}" contradicts Periodic.ProhibitOverlap, which skips runs',
            "remove ProhibitOverlap",
        )


def _check_needed_steps(groups: Sequence[TaskGroup], report: ValidationReport) -> None:
    """Add an error to the report for each need that names no other step, or that does not fit the size of its array."""
    by_name: dict[str, TaskGroup] = {}
    for group in groups:
        by_name.setdefault(group.name, group)
    for position, group in enumerate(groups):
        for path, _, need in _iterate_needs(group.depends or (), f"TaskGroups[{position}]"):
            needed = by_name.get(need.on)
            if needed is not None and need.on != group.name:
                _check_size(group, need, needed, path, report)
            elif needed is not None:
                report.add_error(f"{path}.On", f'The step "{group.name}" needs itself', "name another step")
            elif need.on:
                fix = "name a group of the same job"
                # Each search takes long, and only the first problems are shown.
                if not report.is_full and (nearest := find_nearest_name(need.on, by_name)):
                    fix = f'did you mean "{nearest}"?'
                report.add_error(f"{path}.On", f'The job has no group "{need.on}"', fix)


def _format_count(count: int) -> str:
    return "1 element" if count == 1 else f"{count} elements"


def _check_size(group: TaskGroup, need: Need, needed: TaskGroup, path: str, report: ValidationReport) -> None:
    """Add an error to the report if a need does not fit the size of the needed array."""
    if needed.array is None or group.array is None:
        return
    size, own_size = needed.array.element_count, group.array.element_count
    if need.each and size != own_size:
        report.add_error(
            f"{path}.Each",
            f'Each needs arrays of the same size: "{group.name}" has {_format_count(own_size)}, and "{need.on}" has {size}',
            "make the arrays equally large, or remove Each",
        )
    if need.at_least > size:
        report.add_error(
            f"{path}.AtLeast",
            f'AtLeast is {need.at_least}, and "{need.on}" has {_format_count(size)}',
            f"use a number from 1 to {size}" if size > 1 else "remove AtLeast",
        )


def _check_circles(groups: Sequence[TaskGroup], report: ValidationReport) -> None:
    """Add an error to the report for the first circle of steps that wait for each other.

    It visits each step and each need once.
    """
    positions: dict[str, int] = {}
    for position, group in enumerate(groups):
        positions.setdefault(group.name, position)
    finished: set[int] = set()
    for start in range(len(groups)):
        chain: list[tuple[int, Iterator[tuple[int, Need]]]] = []
        on_chain: dict[int, int] = {}
        following: int | None = None if start in finished else start
        while following is not None or chain:
            if following is not None:
                on_chain[following] = len(chain)
                chain.append((following, iter(enumerate(groups[following].depends or ()))))
            position, needs = chain[-1]
            following = None
            for number, need in needs:
                needed = positions.get(need.on)
                if needed is None or needed in finished or needed == position:
                    continue  # A step that needs itself is reported elsewhere.
                if needed in on_chain:
                    circle = [groups[each].name for each, _ in chain[on_chain[needed] :]]
                    report.add_error(
                        f"TaskGroups[{position}].Depends[{number}].On",
                        f"Steps wait for each other in a circle: {_format_circle(circle)}",
                        "remove one of these needs",
                    )
                    return
                following = needed
                break
            if following is None:
                chain.pop()
                del on_chain[position]
                finished.add(position)


def _format_circle(names: Sequence[str]) -> str:
    """Return the steps of a circle as `a -> b -> a`. A long circle is shortened in its middle."""
    shown = list(names)
    if len(names) > MAX_SHOWN_CIRCLE:
        half = MAX_SHOWN_CIRCLE // 2
        shown = [*names[:half], f"{len(names) - 2 * half} more", *names[-half:]]
    return " -> ".join([*shown, names[0]])
