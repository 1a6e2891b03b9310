"""Shows a run on the terminal: its steps in layers, arrays as counts, reasons, and the critical path."""

from typing import TYPE_CHECKING, Final

from wharf.cli.common.rendering import render_pairs, render_table, style_dim
from wharf.cli.common.terminal import style
from wharf.contract.model.times import SECOND, format_rounded_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wharf.cli.common.server_commands import Session
    from wharf.contract.model.jobs.run_views import RunView, StepView

CRITICAL_MARK: Final = "*"
"""Marks the steps of the critical path."""
MAX_PATH_STEPS: Final = 12
"""Steps of the critical path that one line names; limits its length."""
MAX_NAMED_STEPS: Final = 3
"""Steps that ran again in part and that one line names."""
MIN_STEP_ROWS: Final = 5
"""Steps that are shown even on a low terminal."""
MAX_STATUS_STEPS: Final = 50
"""Steps in the status of a job."""
LAUNCH_SHOWN_AFTER_NS: Final = 10 * SECOND
"""A run that begins later than this after its launch shows both times: it has waited in a queue, for other jobs or for nodes."""
SURROUNDING_LINES: Final = 11
"""Lines of the display besides the steps."""
_ENDED_STATUSES: Final = frozenset({"succeeded", "skipped", "canceled"})
_ENDED_PHRASES: Final = {
    "succeeded": "succeeded",
    "failed": "failed",
    "skipped": "was skipped",
    "canceled": "was canceled",
}
"""What became of a step that has ended, after its name."""


def render_run(session: "Session", run: "RunView", *, max_steps: int | None = None) -> str:
    """Return the whole display. With more steps than `max_steps`, those that have ended well are counted only."""
    parts = [render_pairs(_list_pairs(session, run)), ""]
    steps = list(run.steps)
    folded = len(steps) - max_steps if max_steps is not None else 0
    if folded > 0:
        steps = _select_steps(steps, max_steps or 0)
    parts.append(_render_steps(session, run, steps))
    if folded > 0:
        parts.append(style_dim(f"… and {folded} more steps; `wharf flow status {run.job_id}` lists all"))
    if run.critical_path:
        parts += ["", f"{style_dim('Critical path')}  {format_path(session, run)}"]
    parts += [style(line, fg="yellow") for line in list_questions(session, run)]
    return "\n".join(parts)


def _list_pairs(session: "Session", run: "RunView") -> list[tuple[str, object]]:
    end = run.ended_at if run.status.has_ended else session.now_ns()
    # The text of a run that has ended well says nothing more than its state.
    message = (
        f": {run.text}"
        if run.text and not run.text.startswith(str(run.status))
        else run.text.removeprefix(str(run.status))
    )
    has_waited = not run.began_at or run.began_at - run.created_at >= LAUNCH_SHOWN_AFTER_NS
    attempt = f"{run.attempts[-1].attempt}, {_describe_attempt(run)}" if len(run.attempts) > 1 else ""
    return [
        ("Run", run.job_id),
        ("Flow", run.flow),
        ("State", f"{run.status}{message}"),
        ("Launched", session.format_time(run.created_at) if has_waited else ""),
        ("Begun", session.format_time(run.began_at) if run.began_at else "-"),
        ("Took" if run.status.has_ended else "Takes", _format_span(run.began_at, end) if run.began_at else "-"),
        ("Deadline", session.format_time(run.deadline) if run.deadline and not run.status.has_ended else ""),
        ("Attempt", attempt),
    ]


def _describe_attempt(run: "RunView") -> str:
    newest = run.attempts[-1]
    count = len(newest.steps)
    if not newest.partial_steps and count == len(run.steps):
        return "which runs all steps again"
    names = ", ".join(newest.partial_steps[:MAX_NAMED_STEPS])
    names += ", …" if len(newest.partial_steps) > MAX_NAMED_STEPS else ""
    elements = f", but only some elements of {names}" if names else ""
    return f"which runs {count} of {len(run.steps)} steps again{elements}"


def _select_steps(steps: "list[StepView]", count: int) -> "list[StepView]":
    """Return this number of steps in their order: first those that failed, are busy or wait for an answer."""
    ranked = sorted(range(len(steps)), key=lambda at: (_get_rank(steps[at]), at))
    return [steps[at] for at in sorted(ranked[:count])]


def _get_rank(step: "StepView") -> int:
    if step.status in _ENDED_STATUSES:
        return 2
    return 1 if step.status == "waiting" else 0


def render_steps(session: "Session", run: "RunView") -> str:
    """Return the table of the steps. With many, those that have ended well are counted only."""
    steps = _select_steps(list(run.steps), MAX_STATUS_STEPS)
    table = _render_steps(session, run, steps, has_marks=False)
    more = len(run.steps) - len(steps)
    return f"{table}\n{style_dim(f'… and {more} more steps')}" if more > 0 else table


def _render_steps(session: "Session", run: "RunView", steps: "Sequence[StepView]", *, has_marks: bool = True) -> str:
    """Return the table of these steps. `has_marks`: with a mark for each step of the critical path."""
    has_arrays = any(each.is_array for each in steps)
    titles = ("Layer", "Step", "State", *(("Elements",) if has_arrays else ()), "Time", "Message")
    rows, last_layer = [], -1
    for step in steps:
        layer = step.layer + 1 if step.layer != last_layer else ""
        last_layer = step.layer
        name = f"{step.name} {CRITICAL_MARK}" if step.is_critical and has_marks else step.name
        elements = (_format_elements(step),) if has_arrays else ()
        rows.append((layer, name, step.status, *elements, _format_time(session, step), _format_message(run, step)))
    return render_table(titles, rows, optional_columns=("Time",), shortenable_columns=("Step",))


def _format_elements(step: "StepView") -> str:
    """Return the counts of an array, such as `490/500, 8 run, 2 failed`."""
    counts = step.counts
    if not step.is_array:
        return ""
    text = f"{counts.succeeded}/{step.size}"
    if busy := counts.running + counts.starting:
        text += f", {busy} run"
    if counts.failed:
        text += f", {counts.failed} failed"
    if counts.skipped:
        text += f", {counts.skipped} skipped"
    return text


def _format_time(session: "Session", step: "StepView") -> str:
    """Return how long a step ran, or has been running."""
    if not step.began_at:
        return "-"
    return _format_span(step.began_at, step.ended_at or session.now_ns())


def _format_span(begin_ns: int, end_ns: int) -> str:
    return format_rounded_duration(max(0, end_ns - begin_ns))


def _format_message(run: "RunView", step: "StepView") -> str:
    """Return why a step waits or ended, and whether a retry kept it."""
    text = step.text.removeprefix(str(step.status)).lstrip(",;: ")
    newest = run.attempts[-1].attempt if run.attempts else 0
    if step.attempt and step.attempt < newest:
        text = f"{text}; kept from attempt {step.attempt}" if text else f"kept from attempt {step.attempt}"
    return text


def format_path(session: "Session", run: "RunView") -> str:
    """Return the critical path with the time of each step, such as `build 12s → train 3m`."""
    shown = run.list_path_times(session.now_ns())[-MAX_PATH_STEPS:]
    parts = [f"{name} {format_rounded_duration(time_ns)}" if time_ns else name for name, time_ns in shown]
    return " → ".join([*(["…"] if len(run.critical_path) > len(shown) else []), *parts])


def list_questions(session: "Session", run: "RunView") -> list[str]:
    """Return a line for each step that waits for a person: the question, its deadline and how to answer."""
    return [
        f"{each.name} asks: {each.gate.ask}  `wharf flow approve {run.job_id} {each.name}`"
        f" (expires {session.format_time(each.gate.deadline)})"
        for each in run.steps
        if each.gate is not None and each.gate.is_open
    ]


def list_changes(previous: "RunView | None", run: "RunView") -> list[str]:
    """Return a line for each step whose state changed since the previous view, such as `train is running`."""
    former = {each.name: (each.status, each.counts.failed) for each in previous.steps} if previous is not None else {}
    lines = []
    for step in run.steps:
        if former.get(step.name) == (step.status, step.counts.failed) or (
            previous is None and step.status == "waiting"
        ):
            continue
        message = _format_message(run, step)
        phrase = _ENDED_PHRASES.get(step.status, f"is {step.status}")
        lines.append(f"{step.name} {phrase}" + (f": {message}" if message else ""))
    return lines
