"""The steps of a run as a picture and as a table, and lists of runs and flows."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from wharf.contract.model.jobs.array_views import ArrayCounts
from wharf.contract.model.jobs.run_views import (
    FlowStub,
    RunStatus,
    RunStub,
    RunView,
    StepStatus,
    StepView,
    waits_for_approval,
)
from wharf.contract.model.jobs.step_outputs import StepOutputsView
from wharf.contract.model.jobs.step_states import StepOutcome
from wharf.contract.wire.flows import RunRetryResponse, RunState
from wharf.contract.wire.jobs.states import JobState
from wharf.web.rendering import build_link, format_age, format_span
from wharf.web.views.listing import ListView
from wharf.web.views.states import JOB_TONES, State, Tone
from wharf.web.views.step_outputs import OutputSummary, summarize_outputs

MAX_BOXES: Final = 120
"""Steps of a picture. A page has at most 3,000 elements, and a box has up to six."""
MAX_ROWS: Final = 150
"""Steps of the table; a row has up to twelve elements, and a few have outputs with seven more."""
MAX_SHOWN_NEEDS: Final = 5
"""Needs that a row of the table names."""
MAX_PATH_STEPS: Final = 20
"""Steps of the critical path that a page names, the last ones."""
MAX_RUNS: Final = 20
"""Runs that the page of a flow shows, the newest first."""
MAX_FLOWS: Final = 50
"""Flows that the page of all runs shows."""
SHOWN_STATES: Final = (
    ("", "all"),
    (RunState.GATED.value, "waiting for approval"),
    (RunState.ACTIVE.value, "not ended"),
    (RunState.FAILED.value, "failed"),
    (RunState.SUCCEEDED.value, "succeeded"),
    (RunState.CANCELED.value, "canceled"),
    (RunState.SKIPPED.value, "skipped"),
)
"""The states by which people select runs. The address accepts all others of the API too."""

STEP_TONES: Final = {
    StepStatus.WAITING: Tone.IDLE,
    StepStatus.GATED: Tone.WAIT,
    StepStatus.READY: Tone.WAIT,
    StepStatus.STARTING: Tone.BUSY,
    StepStatus.RUNNING: Tone.BUSY,
    StepStatus.STOPPING: Tone.BUSY,
    StepStatus.SUCCEEDED: Tone.GOOD,
    StepStatus.FAILED: Tone.BAD,
    StepStatus.SKIPPED: Tone.IDLE,
    StepStatus.CANCELED: Tone.IDLE,
}
STEP_WORDS: Final = {StepStatus.GATED: "waits for approval"}
"""The states whose word on a page is not that of the API."""
RUN_TONES: Final = {
    RunStatus.WAITING: Tone.WAIT,
    RunStatus.RUNNING: Tone.BUSY,
    RunStatus.CANCELING: Tone.BUSY,
    RunStatus.SUCCEEDED: Tone.GOOD,
    RunStatus.FAILED: Tone.BAD,
    RunStatus.CANCELED: Tone.IDLE,
    RunStatus.SKIPPED: Tone.IDLE,
}


class StepBox(msgspec.Struct, frozen=True):
    """A step in the picture."""

    name: str
    url: str
    """The row of the step in the table; empty if the table does not have it."""
    state: State
    detail: str
    is_critical: bool


class Layer(msgspec.Struct, frozen=True):
    """The steps of a picture that may run at the same time."""

    number: int
    boxes: tuple[StepBox, ...]


class GateQuestion(msgspec.Struct, frozen=True):
    """The open gate of a step."""

    step: str
    ask: str
    policy: str
    deadline_ns: int
    remaining: str
    is_policy_held: bool
    """Whether the person has the policy that the gate demands."""


class StepRow(msgspec.Struct, frozen=True):
    """A step in the table."""

    key: str
    name: str
    url: str
    """The page of the step."""
    layer: int
    state: State
    elements: str
    duration: str
    text: str
    outputs: OutputSummary | None
    needs: str
    is_critical: bool
    retry_url: str
    """The page that asks whether to run the step again; empty if it has not ended."""


class RunSection(msgspec.Struct, frozen=True):
    """What the page of a job shows of its run."""

    state: State
    text: str
    took: str
    deadline_ns: int
    remaining: str
    attempt: int
    layers: tuple[Layer, ...]
    hidden_boxes: int
    rows: tuple[StepRow, ...]
    hidden_rows: int
    questions: tuple[GateQuestion, ...]
    critical_path: str
    has_ended: bool
    can_cancel: bool
    """Whether it has not ended, and its final steps were not stopped yet."""
    is_canceling: bool
    """Whether it was canceled, and another cancellation stops its final steps too."""
    can_retry: bool
    retry_url: str
    cancel_url: str
    answer_url: str
    flow: str
    flow_url: str


class RunRow(msgspec.Struct, frozen=True):
    """A run in a list."""

    key: str
    job_id: str
    name: str
    """The ID of its job, without that of its flow."""
    url: str
    namespace: str
    flow: str
    flow_url: str
    state: State
    text: str
    steps: str
    took: str
    """Empty if it has not begun."""
    age: str
    """How long ago its first step began; empty if it has not begun."""
    began_ns: int


class RunsView(msgspec.Struct, frozen=True):
    """One page of the runs of a flow."""

    flow: str
    flow_url: str
    list: ListView[RunRow]


class FlowRow(msgspec.Struct, frozen=True):
    """A flow in the list of all flows."""

    key: str
    job_id: str
    url: str
    runs_url: str
    namespace: str
    launched: str
    """What launches its runs."""
    counts: str
    latest: State | None
    """The state of its newest run; `None` if it has none."""
    age: str
    began_ns: int
    """When the newest run began."""


class AllRunsView(msgspec.Struct, frozen=True):
    """One page of the runs of all flows, and of other jobs with steps."""

    list: ListView[RunRow]
    flows: tuple[FlowRow, ...]
    has_more_flows: bool
    states: tuple[tuple[str, str], ...] = SHOWN_STATES


class RetriedRow(msgspec.Struct, frozen=True):
    """A step in the plan of a retry."""

    name: str
    text: str


class RetryView(msgspec.Struct, frozen=True):
    """What a retry would run again, and what it would keep."""

    job_id: str
    job_url: str
    form_url: str
    step: str
    """The step from which the run is repeated; empty: those that failed."""
    runs: tuple[RetriedRow, ...]
    kept_steps: tuple[RetriedRow, ...]
    has_open_steps: bool
    """Steps have not ended: they wait, or run."""


def describe_step(status: StepStatus) -> State:
    """Return the state of a step in words."""
    return State(STEP_WORDS.get(status, str(status)), STEP_TONES[status])


def build_run_section(
    run: RunView,
    namespace: str,
    now_ns: int,
    outputs: Mapping[str, StepOutputsView] | None = None,
    *,
    policies: Container[str] | None = None,
) -> RunSection:
    """Return what the page of a job shows of its run.

    `namespace` is that of the address of the page. `outputs` are the texts that steps left, by the names of the steps.
    `policies` are those of the person's token, for gates that demand one; `None` for a person who may do everything.
    """
    shown = select_rows(run.steps)
    keys = {step.name: f"step-{number}" for number, step in enumerate(run.steps)}
    shown_names = {step.name for step in shown}
    end_ns = run.ended_at if run.status.has_ended else now_ns
    return RunSection(
        state=describe_run(
            run.status,
            is_gated=waits_for_approval({each.status for each in run.steps}),
            has_failures=run.has_failures,
        ),
        text=run.text,
        took=format_span(end_ns - run.began_at) if run.began_at else "",
        deadline_ns=0 if run.status.has_ended else run.deadline,
        remaining=_format_remaining(run.deadline, now_ns),
        attempt=run.attempts[-1].attempt if len(run.attempts) > 1 else 0,
        layers=_build_layers(run.steps[:MAX_BOXES], keys, shown_names, now_ns),
        hidden_boxes=max(0, len(run.steps) - MAX_BOXES),
        rows=tuple(
            _build_row(run, step, keys[step.name], (outputs or {}).get(step.name), namespace, now_ns) for step in shown
        ),
        hidden_rows=len(run.steps) - len(shown),
        questions=tuple(_iter_questions(run.steps, now_ns, policies)),
        critical_path=_format_path(run, now_ns),
        has_ended=run.status.has_ended,
        can_cancel=not run.status.has_ended and all(each.stop_cause is None for each in run.attempts[-1:]),
        is_canceling=run.status is RunStatus.CANCELING,
        can_retry=run.status in (RunStatus.FAILED, RunStatus.CANCELED, RunStatus.SKIPPED),
        retry_url=build_link("jobs", run.job_id, "retry", namespace=namespace),
        cancel_url=build_link("jobs", run.job_id, "cancel", namespace=namespace),
        answer_url=build_link("jobs", run.job_id, "answer", namespace=namespace),
        flow=run.flow,
        flow_url=build_link("jobs", run.flow, namespace=namespace) if run.flow else "",
    )


def select_rows(steps: Sequence[StepView]) -> list[StepView]:
    """Return the steps that the table has room for, in their order: first those that failed, are busy or wait for an answer."""
    if len(steps) <= MAX_ROWS:
        return list(steps)
    ranked = sorted(range(len(steps)), key=lambda at: (_get_rank(steps[at].status), at))
    return [steps[at] for at in sorted(ranked[:MAX_ROWS])]


def _get_rank(status: StepStatus) -> int:
    if status in (StepStatus.SUCCEEDED, StepStatus.SKIPPED, StepStatus.CANCELED):
        return 2
    return 1 if status is StepStatus.WAITING else 0


def _build_layers(
    steps: Iterable[StepView], keys: dict[str, str], shown_names: set[str], now_ns: int
) -> tuple[Layer, ...]:
    boxes: dict[int, list[StepBox]] = {}
    for step in steps:
        box = StepBox(
            name=step.name,
            url=f"#{keys[step.name]}" if step.name in shown_names else "",
            state=describe_step(step.status),
            detail=format_step_counts(step) or format_step_duration(step, now_ns),
            is_critical=step.is_critical,
        )
        boxes.setdefault(step.layer, []).append(box)
    return tuple(Layer(number + 1, tuple(each)) for number, each in sorted(boxes.items()))


def _build_row(
    run: RunView, step: StepView, key: str, outputs: StepOutputsView | None, namespace: str, now_ns: int
) -> StepRow:
    more = len(step.needs) - MAX_SHOWN_NEEDS
    has_ended = step.status in (StepStatus.SUCCEEDED, StepStatus.FAILED, StepStatus.SKIPPED, StepStatus.CANCELED)
    return StepRow(
        key=key,
        name=step.name,
        url=build_link("jobs", run.job_id, "steps", step.name, namespace=namespace),
        layer=step.layer + 1,
        state=describe_step(step.status),
        elements=format_step_counts(step),
        duration=format_step_duration(step, now_ns),
        text=describe_step_text(run, step),
        outputs=summarize_outputs(outputs, is_array=step.is_array),
        needs=", ".join(step.needs[:MAX_SHOWN_NEEDS]) + (f" and {more} more" if more > 0 else ""),
        is_critical=step.is_critical,
        retry_url=build_link("jobs", run.job_id, "retry", step=step.name, namespace=namespace) if has_ended else "",
    )


def describe_step_text(run: RunView, step: StepView) -> str:
    """Return why a step waits or how it ended, who approved its gate, and whether a retry kept it."""
    newest = run.attempts[-1].attempt if run.attempts else 0
    origin = f"kept from attempt {step.attempt}" if step.attempt and step.attempt < newest else ""
    return "; ".join(filter(None, (_leave_out(step), _describe_answer(step), origin)))


def _leave_out(step: StepView) -> str:
    """Return the text of a step without the word that its state says already."""
    text = step.text.removeprefix(str(step.status)).lstrip(",;: ")
    return "" if text == STEP_WORDS.get(step.status) else text


def _describe_answer(step: StepView) -> str:
    """Return who approved the gate of a step; empty for a rejection, which is the reason why the step failed."""
    gate = step.gate
    if gate is None or gate.answer != "approved":
        return ""
    return f"approved by {gate.answered_by}" + (f": {gate.answer_text}" if gate.answer_text else "")


def format_step_counts(step: StepView) -> str:
    """Return the counts of an array, such as `490 of 500, 8 run, 2 failed`; empty for a step with one element."""
    if not step.is_array:
        return ""
    counts: ArrayCounts = step.counts
    busy = counts.running + counts.starting
    parts = [f"{counts.succeeded} of {step.size}"]
    parts += [f"{busy} run"] if busy else []
    parts += [f"{counts.failed} failed"] if counts.failed else []
    parts += [f"{counts.skipped} skipped"] if counts.skipped else []
    return ", ".join(parts)


def format_step_duration(step: StepView, now_ns: int) -> str:
    """Return how long a step ran, or has been running; empty if it has not begun."""
    return format_span((step.ended_at or now_ns) - step.began_at) if step.began_at else ""


def _format_remaining(deadline_ns: int, now_ns: int) -> str:
    return format_span(max(0, deadline_ns - now_ns)) if deadline_ns else ""


def _iter_questions(steps: Iterable[StepView], now_ns: int, policies: Container[str] | None) -> Iterator[GateQuestion]:
    """Yield the open gates of steps. `policies` are those of the person's token; `None` if the person may do everything."""
    for step in steps:
        gate = step.gate
        if gate is not None and gate.is_open:
            remaining = _format_remaining(gate.deadline, now_ns)
            is_held = not gate.policy or policies is None or gate.policy in policies
            yield GateQuestion(step.name, gate.ask, gate.policy, gate.deadline, remaining, is_held)


def _format_path(run: RunView, now_ns: int) -> str:
    """Return the critical path with the time of each step, such as `build 12s → train 3m`."""
    shown = run.list_path_times(now_ns)[-MAX_PATH_STEPS:]
    parts = [f"{name} {format_span(time_ns)}" if time_ns else name for name, time_ns in shown]
    return " → ".join([*(["…"] if len(run.critical_path) > len(shown) else []), *parts])


def describe_run(status: RunStatus, *, is_gated: bool, has_failures: bool = False) -> State:
    """Return the state of a run in words. `is_gated`: it only waits for a person, and does not look as if it ran.

    `has_failures`: a step failed that may fail.
    """
    if is_gated and not status.has_ended:
        return State(STEP_WORDS[StepStatus.GATED], Tone.WAIT)
    if has_failures and status is RunStatus.SUCCEEDED:
        return State(JobState.WITH_FAILURES, JOB_TONES[JobState.WITH_FAILURES])
    return State(str(status), RUN_TONES[status])


def _describe_listed(run: RunStub) -> State:
    is_gated = bool(run.counts.gated) and not run.counts.running
    return describe_run(run.status, is_gated=is_gated, has_failures=run.has_failures)


def build_run_row(run: RunStub, now_ns: int) -> RunRow:
    """Return a run as lists show it."""
    counts, end_ns = run.counts, run.ended_at if run.status.has_ended else now_ns
    ended = counts.succeeded + counts.failed + counts.skipped + counts.canceled
    state = _describe_listed(run)
    shown_status = state.text if run.status.has_ended else str(run.status)
    namespace = run.namespace if run.namespace != "default" else ""
    return RunRow(
        key=f"{run.namespace}/{run.job_id}",
        job_id=run.job_id,
        name=run.job_id.removeprefix(f"{run.flow}/") if run.flow else run.job_id,
        url=build_link("jobs", run.job_id, namespace=namespace),
        namespace=run.namespace,
        flow=run.flow,
        flow_url=build_link("jobs", run.flow, namespace=namespace) if run.flow else "",
        state=state,
        text="" if run.text == shown_status else run.text.removeprefix(f"{shown_status}: "),
        steps=f"{ended} of {run.step_count}",
        took=format_span(end_ns - run.began_at) if run.began_at else "",
        age=format_age(run.began_at, now_ns) if run.began_at else "",
        began_ns=run.began_at,
    )


def build_flow_row(flow: FlowStub, now_ns: int) -> FlowRow:
    """Return a flow as the list of all flows shows it."""
    namespace = flow.namespace if flow.namespace != "default" else ""
    latest = flow.latest
    counts = ((flow.waiting, "waiting"), (flow.running, "running"), (flow.ended, "ended"))
    return FlowRow(
        key=f"{flow.namespace}/{flow.job_id}",
        job_id=flow.job_id,
        url=build_link("jobs", flow.job_id, namespace=namespace),
        runs_url=build_link("jobs", flow.job_id, "runs", namespace=namespace),
        namespace=flow.namespace,
        launched="stopped" if flow.stop else "by schedule" if flow.is_periodic else "by dispatch",
        counts=", ".join(f"{count:,} {word}" for count, word in counts if count) or "none yet",
        latest=_describe_listed(latest) if latest is not None else None,
        age=format_age(latest.began_at, now_ns) if latest is not None and latest.began_at else "",
        began_ns=latest.began_at if latest is not None else 0,
    )


def build_retry_view(job_id: str, namespace: str, step: str, plan: RunRetryResponse) -> RetryView:
    """Return the plan of a retry. `namespace` is that of the address of the page."""
    return RetryView(
        job_id=job_id,
        job_url=build_link("jobs", job_id, namespace=namespace),
        form_url=build_link("jobs", job_id, "retry", namespace=namespace),
        step=step,
        has_open_steps=any(each.outcome == StepOutcome.OPEN for each in plan.kept_steps),
        runs=tuple(
            RetriedRow(
                each.name,
                each.reason
                if each.element_count == each.size
                else f"{each.reason}; {each.element_count} of {each.size} elements",
            )
            for each in plan.steps[:MAX_ROWS]
        ),
        kept_steps=tuple(RetriedRow(each.name, each.reason) for each in plan.kept_steps[:MAX_ROWS]),
    )
