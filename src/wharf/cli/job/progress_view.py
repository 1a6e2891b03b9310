"""Shows the progress of a followed job: updated in place on a terminal, else a line for each change."""

import shutil
from collections.abc import Set
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import click

from wharf.cli.common.allocation_selection import get_index
from wharf.cli.common.failures import describe_unplaced, render_unplaced_groups
from wharf.cli.common.live_text import LiveText
from wharf.cli.common.log_ends import LogEnds
from wharf.cli.common.record_tables import format_health
from wharf.cli.common.rendering import (
    colour_state,
    get_terminal_width,
    render_bar,
    render_heading,
    render_table,
    shorten_words,
    style_dim,
    wrap_for_terminal,
)
from wharf.cli.common.terminal import style
from wharf.cli.common.times import format_relative_time
from wharf.contract.model.times import SECOND, format_rounded_duration

if TYPE_CHECKING:
    from wharf.cli.common.server_commands import Session
    from wharf.cli.job.progress import JobProgress
    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.model.jobs.array_views import ArrayView

SURROUNDING_LINES: Final = 16
"""Lines of the display besides groups and allocations; the table of allocations gets the rest of the terminal."""
MIN_ALLOCATION_ROWS: Final = 4
"""Allocations that are shown even on a low terminal."""
SMALL_ARRAY_ELEMENTS: Final = 20
"""Arrays with at most this many elements print each change of their counts."""
ELEMENTS_INTERVAL_NS: Final = 10 * SECOND
"""How often the counts of a larger array are printed at most, if the output is not a terminal."""
REASONS_INTERVAL_NS: Final = 60 * SECOND
"""How often is printed at most why a batch job waits, if the output is not a terminal."""
FAILURE_INDENT: Final = 6
"""The columns in front of the lines that a failed task printed."""
FAILURE_HEADING_LINES: Final = 2
"""The empty line and the heading above the reasons of failures."""
REQUIRED_COLUMNS: Final = frozenset({"Desired", "Running", "Healthy"})
"""Counts of a group that are always shown; others appear once they are not 0, so that the table stays narrow."""

ALLOCATION_TITLES: Final = ("Group", "Node", "Version", "Status", "Health", "Since")
"""The columns of the table of allocations after the ID, and the element if the job has arrays."""
OPTIONAL_COLUMNS: Final = ("Complete", "Old", "Pending")
"""Columns that a narrow terminal does not show."""


class LiveProgressView:
    """A display that is updated in place on a terminal."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._log_ends = LogEnds(session)
        self._columns: set[str] = set()
        """Columns that were not empty once. They stay, because columns that come and go are hard to read."""
        self._live = LiveText()

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def update(self, progress: "JobProgress", elapsed_ns: int, explanation: str = "") -> None:
        """Show the progress in place, with as many allocations as the terminal has rows, and what the job waits for."""
        width = get_terminal_width() - FAILURE_INDENT
        failures = [
            shorten_words(line, width) for failure in progress.failures for line in failure.render(self._log_ends)
        ]
        free_lines = shutil.get_terminal_size().lines - SURROUNDING_LINES - len(progress.job.groups)
        if failures:
            free_lines -= len(failures) + FAILURE_HEADING_LINES
        self._columns |= find_nonempty_columns(progress)
        rendered = render_progress(
            progress,
            elapsed_ns,
            self._session,
            max_allocations=max(MIN_ALLOCATION_ROWS, free_lines),
            columns=self._columns,
        )
        if failures:
            rendered += "\n\n" + style("Failed:", fg="red") + "".join(f"\n  {line}" for line in failures)
        if explanation:
            rendered += f"\n\n{style_dim(explanation)}"
        self._live.update(rendered)

    def stop(self) -> None:
        self._live.stop()

    def report_outcome(self, is_success: bool, text: str) -> None:
        _print_outcome(is_success, text)


class LineProgressView:
    """A display that prints a line whenever the summary changes, for output that is not a terminal."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._log_ends = LogEnds(session)
        self._last_line = ""
        self._last_reasons: list[str] = []
        self._printed_failures: set[str] = set()
        self._next_elements_ns = 0
        self._next_reasons_ns = 0
        self._unprinted_line = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def update(self, progress: "JobProgress", elapsed_ns: int, explanation: str = "") -> None:
        """Print a line if the summary changed, each reason of failures once, and what the job waits for if that changed.

        Elements of a large array end often, and waiting is normal for a batch job: both are printed only now and then.
        """
        line = format_summary(progress)
        if line != self._last_line:
            self._last_line = line
            self._unprinted_line = f"{format_rounded_duration(elapsed_ns):>6}  {line}"
            is_large = sum(each.size for each in progress.arrays) > SMALL_ARRAY_ELEMENTS
            if not is_large or elapsed_ns >= self._next_elements_ns:
                self._next_elements_ns = elapsed_ns + ELEMENTS_INTERVAL_NS
                self._print_summary()
        for failure in progress.failures:
            if failure.reason not in self._printed_failures:
                self._printed_failures.add(failure.reason)
                for text in failure.render(self._log_ends):
                    self._session.print_text(f"{'':>6}  {text}")
        reasons = render_unplaced_groups(progress.unplaced, progress.explanations, progress.arrays)
        reasons += [explanation] if explanation else []
        if reasons and reasons != self._last_reasons and elapsed_ns >= self._next_reasons_ns:
            self._last_reasons = reasons
            self._next_reasons_ns = elapsed_ns + REASONS_INTERVAL_NS if progress.is_batch else 0
            for reason in reasons:
                self._session.print_text(f"{'':>6}  {reason}")

    def _print_summary(self) -> None:
        """Print the newest summary, unless that is done."""
        if self._unprinted_line:
            self._session.print_text(self._unprinted_line)
            self._unprinted_line = ""

    def stop(self) -> None:
        self._print_summary()

    def report_outcome(self, is_success: bool, text: str) -> None:
        self._print_summary()
        if not self._session.is_machine_readable:
            _print_outcome(is_success, text)


def format_summary(progress: "JobProgress") -> str:
    """Return the progress as one line: allocations by state, and what the user must do next."""
    if progress.arrays:
        return _format_elements(progress)
    counts: dict[str, int] = {}
    for allocation in progress.current_allocations:
        state = _get_state(allocation)
        counts[state] = counts.get(state, 0) + 1
    parts = [f"{count} {state}" for state, count in sorted(counts.items())]
    missing = sum(metric.coalesced_failures + 1 for metric in progress.unplaced.values())
    if missing:
        parts.append(f"{missing} not placed")
    summary = ", ".join(parts) or "nothing placed yet"
    if progress.is_awaiting_promotion and progress.deployment is not None:
        return f"{summary}; the canaries are healthy: `wharf deployment promote {progress.deployment.id[:8]}`"
    return summary


def _format_elements(progress: "JobProgress") -> str:
    """Return how many elements of the arrays of a job have each state, as one line."""
    states = ("succeeded", "running", "starting", "waiting", "failed", "canceled", "skipped")
    counts = {state: sum(getattr(each.counts, state) for each in progress.arrays) for state in states}
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "nothing placed yet"


def render_progress(
    progress: "JobProgress", elapsed_ns: int, session: "Session", *, max_allocations: int, columns: Set[str]
) -> str:
    """Return the whole display: at most `max_allocations` allocations, and only these columns of group counts."""
    job = progress.job
    description = f"{job.type}, version {progress.version}, for {format_rounded_duration(elapsed_ns)}"
    parts = [f"{render_heading(job.id)}  {style_dim(description)}"]
    parts += _render_progress_bar(progress, session)
    parts.append("")
    parts.append(_render_groups(progress, columns))
    listed = _list_relevant_allocations(progress)
    shown = listed[:max_allocations]
    if shown:
        parts.append("")
        has_elements = bool(progress.arrays)
        titles = ("Allocation", *(["Element"] if has_elements else []), *ALLOCATION_TITLES)
        parts.append(
            render_table(
                titles,
                [_build_allocation_row(allocation, session, has_elements=has_elements) for allocation in shown],
                optional_columns=("Version", "Since"),
                shortenable_columns=("Group", "Node"),
            )
        )
        omitted = len(listed) - len(shown)
        if omitted:
            parts.append(style_dim(f"… and {omitted} more"))
    latest = max(progress.evaluations, key=lambda evaluation: evaluation.create_index, default=None)
    if latest is not None:
        trigger = f", triggered by {latest.triggered_by}"
        parts += [
            "",
            f"{style_dim('Latest evaluation')} {session.shorten_id(latest.id)} "
            f"{colour_state(latest.status)}{style_dim(trigger)}",
        ]
    if progress.unplaced:
        parts.append(style(f"{describe_unplaced(progress.unplaced)}:", fg="yellow"))
        parts += [
            f"  {line}" for line in render_unplaced_groups(progress.unplaced, progress.explanations, progress.arrays)
        ]
    if progress.is_awaiting_promotion and progress.deployment is not None:
        parts.append(
            style("The canaries are healthy.", fg="green")
            + f" Promote them with: wharf deployment promote {progress.deployment.id[:8]}"
        )
    return "\n".join(parts)


def _render_progress_bar(progress: "JobProgress", session: "Session") -> list[str]:
    """Return the progress bar with counts, and the line of the deployment if there is one."""
    deployment = progress.deployment
    if deployment is None:
        total = (
            len(progress.current_allocations)
            if progress.is_per_node
            else sum(group.total_count for group in progress.job.groups)
        )
        word = "complete" if progress.is_batch else "running"
        if progress.arrays:
            plain = [group for group in progress.job.groups if group.array is None]
            names = {group.name for group in plain}
            total = sum(each.size for each in progress.arrays) + sum(group.count for group in plain)
            done = sum(each.counts.succeeded for each in progress.arrays) + sum(
                allocation.client_status == word and allocation.task_group in names
                for allocation in progress.current_allocations
            )
            return [f"{render_bar(done, total)}  {done}/{total} {word}"]
        done = sum(allocation.client_status == word for allocation in progress.current_allocations)
        return [f"{render_bar(done, total)}  {done}/{total} {word}"]
    groups = list((deployment.task_groups or {}).values())
    done = sum(group.healthy_allocs for group in groups)
    # Until the promotion, a group places no more than its canaries.
    total = sum(group.desired_canaries if group.is_awaiting_promotion else group.desired_total for group in groups)
    deadline = min((group.require_progress_by for group in groups if group.require_progress_by), default=None)
    deadline_text = (
        f"  {style_dim(f'progress deadline {format_relative_time(deadline, session.now_ns())}')}"
        if deadline and deployment.is_active
        else ""
    )
    label = "canaries healthy" if progress.deployment is not None and deployment.is_awaiting_promotion else "healthy"
    return [
        f"{render_bar(done, total)}  {done}/{total} {label}{deadline_text}",
        f"{style_dim('Deployment')} {session.shorten_id(deployment.id)} {colour_state(deployment.status)}"
        f"  {style_dim(deployment.status_description)}",
    ]


def _render_groups(progress: "JobProgress", columns: Set[str]) -> str:
    """Return the table of group counts, with the required columns and those in `columns`."""
    rows = _count_by_group(progress)
    all_titles = dict.fromkeys(title for _, counts in rows for title in counts)
    titles = [title for title in all_titles if title in REQUIRED_COLUMNS or title in columns]
    return render_table(
        ("Group", *titles),
        [(name, *(counts.get(title, 0) for title in titles)) for name, counts in rows],
        optional_columns=OPTIONAL_COLUMNS,
        shortenable_columns=("Group",),
    )


def find_nonempty_columns(progress: "JobProgress") -> set[str]:
    """Return the titles of the columns in which at least one group has a count other than 0."""
    return {title for _, counts in _count_by_group(progress) for title, count in counts.items() if count != 0}


def _count_by_group(progress: "JobProgress") -> list[tuple[str, dict[str, Any]]]:
    """Return for each group its name and its counts by column title, in the order of the job's groups."""
    deployment_groups = (progress.deployment.task_groups or {}) if progress.deployment else {}
    has_canaries = any(group.desired_canaries for group in deployment_groups.values())
    rows: list[tuple[str, dict[str, Any]]] = []
    for group in progress.job.groups:
        current = [allocation for allocation in progress.current_allocations if allocation.task_group == group.name]
        old = [
            allocation
            for allocation in progress.allocations
            if allocation.job_version != progress.version and allocation.task_group == group.name
        ]
        unplaced = progress.unplaced.get(group.name)
        counts = [
            sum(allocation.client_status == status for allocation in current)
            for status in ("pending", "running", "complete")
        ]
        array = next((each for each in progress.arrays if each.group == group.name), None)
        if array is not None:
            rows.append((group.name, _count_elements(array)))
            continue
        cells: dict[str, Any] = {
            "Desired": len(current) if progress.is_per_node else group.count,
            **dict(zip(("Pending", "Running", "Complete"), counts, strict=True)),
            "Failed": sum(allocation.client_status in ("failed", "lost") for allocation in current),
            "Old": sum(allocation.client_status in ("running", "pending") for allocation in old),
            "Not placed": unplaced.coalesced_failures + 1 if unplaced else 0,
        }
        state = deployment_groups.get(group.name)
        if deployment_groups:
            cells["Healthy"] = state.healthy_allocs if state else "-"
            cells["Unhealthy"] = state.unhealthy_allocs if state else 0
        if has_canaries:
            placed = len(state.placed_canaries or ()) if state else 0
            cells["Canaries"] = (
                f"{placed}/{state.desired_canaries}{' promoted' if state.promoted else ''}" if state else "-"
            )
        rows.append((group.name, cells))
    return rows


def _count_elements(array: "ArrayView") -> dict[str, Any]:
    """Return the counts of an array by column title."""
    counts = array.counts
    return {
        "Desired": array.size,
        "Pending": counts.starting,
        "Running": counts.running,
        "Complete": counts.succeeded,
        "Failed": counts.failed,
        "Old": 0,
        "Not placed": counts.waiting,
        "Canceled": counts.canceled,
        "Skipped": counts.skipped,
    }


def _list_relevant_allocations(progress: "JobProgress") -> "list[AllocationStub]":
    """Return all allocations except complete ones of older versions: the followed version first, failures first."""
    relevant = [
        allocation
        for allocation in progress.allocations
        if allocation.client_status != "complete" or allocation in progress.current_allocations
    ]
    order = {"failed": 0, "pending": 1}
    return sorted(
        relevant,
        key=lambda allocation: (
            allocation.job_version != progress.version,
            order.get(allocation.client_status, 2),
            -allocation.modify_time,
            allocation.name,
        ),
    )


def _build_allocation_row(allocation: "AllocationStub", session: "Session", *, has_elements: bool) -> tuple[Any, ...]:
    """Return the table row of an allocation, with the index of its element if the job has arrays."""
    return (
        session.shorten_id(allocation.id),
        *([get_index(allocation)] if has_elements else []),
        allocation.task_group,
        allocation.node_name or session.shorten_id(allocation.node_id),
        allocation.job_version,
        allocation.client_status,
        format_health(allocation),
        format_relative_time(allocation.modify_time, session.now_ns()),
    )


def _get_state(allocation: "AllocationStub") -> str:
    """Return the client status, or the health of a running allocation if it is known."""
    health = allocation.deployment_status.healthy if allocation.deployment_status else None
    if allocation.client_status == "running" and health is not None:
        return "healthy" if health else "unhealthy"
    return str(allocation.client_status)


def _print_outcome(is_success: bool, text: str) -> None:
    mark = style("✓", fg="green", bold=True) if is_success else style("✗", fg="red", bold=True)
    click.echo(wrap_for_terminal(f"{mark} {text}"))
