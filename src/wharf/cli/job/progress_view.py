"""How a job that is followed looks: on a terminal a picture that changes in place, else a line whenever something changes."""

import shutil
from collections.abc import Set
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import click

from wharf.cli.common.failures import render_unplaced_groups
from wharf.cli.common.record_tables import format_health
from wharf.cli.common.rendering import colour_state, render_bar, render_heading, render_table, style_dim
from wharf.cli.common.times import format_relative_time, format_rounded_duration

if TYPE_CHECKING:
    from wharf.cli.common.server_commands import Session
    from wharf.cli.job.progress import JobProgress
    from wharf.contract.model.allocations.allocation import AllocationStub

SURROUNDING_LINES: Final = 16
"""What stands on the terminal beside the allocations."""
MIN_ALLOCATION_ROWS: Final = 4
REQUIRED_COLUMNS: Final = frozenset({"Wanted", "Running", "Healthy"})
"""What is counted of a group in any case; the rest only once there is something to count, so that it fits a terminal."""

OPTIONAL_COLUMNS: Final = ("Complete", "Old", "Pending")
"""What a narrow terminal goes without."""


class ProgressView(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, progress: "JobProgress", elapsed_ns: int) -> None: ...

    def stop(self) -> None:
        """Before something else is written."""
        ...

    def report_outcome(self, is_success: bool, text: str) -> None:
        """How it ended."""
        ...


class LiveProgressView:
    def __init__(self, session: "Session") -> None:
        from rich.console import Console
        from rich.live import Live

        self._talk = session
        self._columns: set[str] = set()
        """Those that had something in them once stay: what comes and goes cannot be read."""
        self._live = Live(console=Console(highlight=False, no_color=not _has_colours()), refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def update(self, progress: "JobProgress", elapsed_ns: int) -> None:
        from rich.text import Text

        most = max(MIN_ALLOCATION_ROWS, shutil.get_terminal_size().lines - SURROUNDING_LINES - len(progress.job.groups))
        self._columns |= find_nonempty_columns(progress)
        told = render_progress(progress, elapsed_ns, self._talk, max_allocations=most, columns=self._columns)
        text = Text.from_ansi(told if _has_colours() else click.unstyle(told))
        text.no_wrap, text.overflow = True, "ellipsis"
        self._live.update(text)

    def stop(self) -> None:
        self._live.stop()

    def report_outcome(self, is_success: bool, text: str) -> None:
        _tell(is_success, text)


class LineProgressView:
    def __init__(self, session: "Session") -> None:
        self._talk = session
        self._last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def update(self, progress: "JobProgress", elapsed_ns: int) -> None:
        line = format_summary(progress)
        if line != self._last:
            self._last = line
            self._talk.print_text(f"{format_rounded_duration(elapsed_ns):>6}  {line}")

    def stop(self) -> None:
        return

    def report_outcome(self, is_success: bool, text: str) -> None:
        if not self._talk.is_machine_readable:
            _tell(is_success, text)


def format_summary(progress: "JobProgress") -> str:
    """One line of how far it is."""
    counts: dict[str, int] = {}
    for one in progress.current_allocations:
        counts[_state_of(one)] = counts.get(_state_of(one), 0) + 1
    parts = [f"{count} {state}" for state, count in sorted(counts.items())]
    missing = sum(metric.coalesced_failures + 1 for metric in progress.unplaced.values())
    if missing:
        parts.append(f"{missing} not placed")
    said = ", ".join(parts) or "nothing is placed yet"
    if progress.is_awaiting_promotion and progress.deployment is not None:
        return f"{said}; the canaries are healthy: `wharf deployment promote {progress.deployment.id[:8]}`"
    return said


def render_progress(
    progress: "JobProgress", elapsed_ns: int, session: "Session", *, max_allocations: int, columns: Set[str]
) -> str:
    """All that is worth seeing, with so many allocations at most, and of the groups' counts those that are named."""
    job = progress.job
    parts = [
        f"{render_heading(job.id)}  {style_dim(f'{job.type}, version {progress.version}, for {format_rounded_duration(elapsed_ns)}')}"
    ]
    parts += _progress(progress, session)
    parts.append("")
    parts.append(_groups_told(progress, columns))
    shown = _worth_seeing(progress)[:max_allocations]
    if shown:
        parts.append("")
        titles = ("Allocation", "Group", "Node", "Version", "Status", "Health", "Since")
        parts.append(
            render_table(
                titles,
                [_row(one, session) for one in shown],
                optional_columns=("Version", "Since"),
                shortenable_columns=("Group", "Node"),
            )
        )
        left = len(_worth_seeing(progress)) - len(shown)
        if left:
            parts.append(style_dim(f"… and {left} more"))
    latest = max(progress.evaluations, key=lambda one: one.create_index, default=None)
    if latest is not None:
        why = f", because of {latest.triggered_by}"
        parts += [
            "",
            f"{style_dim('Latest evaluation')} {session.shorten_id(latest.id)} {colour_state(latest.status)}{style_dim(why)}",
        ]
    if progress.unplaced:
        parts.append(click.style("Not placed, until there is room:", fg="yellow"))
        parts += [f"  {line}" for line in render_unplaced_groups(progress.unplaced)]
    if progress.is_awaiting_promotion and progress.deployment is not None:
        parts.append(
            click.style("The canaries are healthy.", fg="green")
            + f" Go on with: wharf deployment promote {progress.deployment.id[:8]}"
        )
    return "\n".join(parts)


def _progress(progress: "JobProgress", session: "Session") -> list[str]:
    deployment = progress.deployment
    if deployment is None:
        wanted = (
            len(progress.current_allocations)
            if progress.is_per_node
            else sum(group.count for group in progress.job.groups)
        )
        word = "complete" if progress.is_batch else "running"
        done = sum(one.client_status == word for one in progress.current_allocations)
        return [f"{render_bar(done, wanted)}  {done}/{wanted} {word}"]
    groups = list((deployment.task_groups or {}).values())
    done = sum(group.healthy_allocs for group in groups)
    wanted = sum(
        group.desired_canaries if group.is_awaiting_promotion else group.desired_total for group in groups
    )  # Before a promotion there is no more to come than the canaries.
    by = min((group.require_progress_by for group in groups if group.require_progress_by), default=None)
    until = (
        f"  {style_dim(f'progress due {format_relative_time(by, session.now_ns())}')}"
        if by and deployment.is_active
        else ""
    )
    what = "canaries healthy" if progress.deployment is not None and deployment.is_awaiting_promotion else "healthy"
    return [
        f"{render_bar(done, wanted)}  {done}/{wanted} {what}{until}",
        f"{style_dim('Deployment')} {session.shorten_id(deployment.id)} {colour_state(deployment.status)}"
        f"  {style_dim(deployment.status_description)}",
    ]


def _groups_told(progress: "JobProgress", columns: Set[str]) -> str:
    rows = _counts(progress)
    titles = [title for title in rows[0][1] if title in REQUIRED_COLUMNS or title in columns] if rows else []
    return render_table(
        ("Group", *titles),
        [(name, *(counts[title] for title in titles)) for name, counts in rows],
        optional_columns=OPTIONAL_COLUMNS,
        shortenable_columns=("Group",),
    )


def find_nonempty_columns(progress: "JobProgress") -> set[str]:
    return {title for _, counts in _counts(progress) for title, count in counts.items() if count != 0}


def _counts(progress: "JobProgress") -> list[tuple[str, dict[str, Any]]]:
    """Of each group what is told of it, by the titles of the columns, in order."""
    rolled = (progress.deployment.task_groups or {}) if progress.deployment else {}
    has_canaries = any(group.desired_canaries for group in rolled.values())
    rows: list[tuple[str, dict[str, Any]]] = []
    for group in progress.job.groups:
        mine = [one for one in progress.current_allocations if one.task_group == group.name]
        old = [
            one for one in progress.allocations if one.job_version != progress.version and one.task_group == group.name
        ]
        missing = progress.unplaced.get(group.name)
        counts = [sum(one.client_status == status for one in mine) for status in ("pending", "running", "complete")]
        found: dict[str, Any] = {
            "Wanted": len(mine) if progress.is_per_node else group.count,
            **dict(zip(("Pending", "Running", "Complete"), counts, strict=True)),
            "Failed": sum(one.client_status in ("failed", "lost") for one in mine),
            "Old": sum(one.client_status in ("running", "pending") for one in old),
            "Not placed": missing.coalesced_failures + 1 if missing else 0,
        }
        told = rolled.get(group.name)
        if rolled:
            found["Healthy"] = told.healthy_allocs if told else "-"
            found["Unhealthy"] = told.unhealthy_allocs if told else 0
        if has_canaries:
            placed = len(told.placed_canaries or ()) if told else 0
            found["Canaries"] = (
                f"{placed}/{told.desired_canaries}{' promoted' if told.promoted else ''}" if told else "-"
            )
        rows.append((group.name, found))
    return rows


def _worth_seeing(progress: "JobProgress") -> "list[AllocationStub]":
    """What goes on or went wrong, of all versions; what changed last is first."""
    kept = [
        one for one in progress.allocations if one.client_status != "complete" or one in progress.current_allocations
    ]
    order = {"failed": 0, "pending": 1}
    return sorted(
        kept,
        key=lambda one: (
            one.job_version != progress.version,
            order.get(one.client_status, 2),
            -one.modify_time,
            one.name,
        ),
    )


def _row(one: "AllocationStub", session: "Session") -> tuple[Any, ...]:
    return (
        session.shorten_id(one.id),
        one.task_group,
        one.node_name or session.shorten_id(one.node_id),
        one.job_version,
        one.client_status,
        format_health(one),
        format_relative_time(one.modify_time, session.now_ns()),
    )


def _state_of(one: "AllocationStub") -> str:
    health = one.deployment_status.healthy if one.deployment_status else None
    if one.client_status == "running" and health is not None:
        return "healthy" if health else "unhealthy"
    return str(one.client_status)


def _tell(is_good: bool, text: str) -> None:
    mark = click.style("✓", fg="green", bold=True) if is_good else click.style("✗", fg="red", bold=True)
    click.echo(f"{mark} {text}")


def _has_colours() -> bool:
    from click.globals import resolve_color_default

    return resolve_color_default() is not False
