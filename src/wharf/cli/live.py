"""How a job that is followed looks: on a terminal a picture that changes in place, else a line whenever something changes."""

import shutil
from collections.abc import Set
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import click

from wharf.cli.moments import say_length, say_when
from wharf.cli.reasons import unplaced_lines
from wharf.cli.tables import bar, coloured, dim, heading, table

if TYPE_CHECKING:
    from wharf.cli.following import Sight
    from wharf.cli.speaking import Talk
    from wharf.model.allocation import AllocationStub

LINES_ROUND_IT: Final = 16
"""What stands on the terminal beside the allocations."""
FEWEST: Final = 4
ALWAYS: Final = frozenset({"Wanted", "Running", "Healthy"})
"""What is counted of a group in any case; the rest only once there is something to count, so that it fits a terminal."""

SPARE: Final = ("Complete", "Old", "Pending")
"""What a narrow terminal goes without."""


class View(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, sight: "Sight", length_ns: int) -> None: ...

    def leave(self) -> None:
        """Before something else is written."""
        ...

    def tell(self, is_good: bool, text: str) -> None:
        """How it ended."""
        ...


class Picture:
    def __init__(self, talk: "Talk") -> None:
        from rich.console import Console
        from rich.live import Live

        self._talk = talk
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

    def show(self, sight: "Sight", length_ns: int) -> None:
        from rich.text import Text

        most = max(FEWEST, shutil.get_terminal_size().lines - LINES_ROUND_IT - len(sight.job.groups))
        self._columns |= columns_with_something(sight)
        told = picture(sight, length_ns, self._talk, most=most, columns=self._columns)
        text = Text.from_ansi(told if _has_colours() else click.unstyle(told))
        text.no_wrap, text.overflow = True, "ellipsis"
        self._live.update(text)

    def leave(self) -> None:
        self._live.stop()

    def tell(self, is_good: bool, text: str) -> None:
        _tell(is_good, text)


class Lines:
    def __init__(self, talk: "Talk") -> None:
        self._talk = talk
        self._last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def show(self, sight: "Sight", length_ns: int) -> None:
        line = summary(sight)
        if line != self._last:
            self._last = line
            self._talk.say(f"{say_length(length_ns):>6}  {line}")

    def leave(self) -> None:
        return

    def tell(self, is_good: bool, text: str) -> None:
        if not self._talk.is_for_programs:
            _tell(is_good, text)


def summary(sight: "Sight") -> str:
    """One line of how far it is."""
    counts: dict[str, int] = {}
    for one in sight.current:
        counts[_state_of(one)] = counts.get(_state_of(one), 0) + 1
    parts = [f"{count} {state}" for state, count in sorted(counts.items())]
    missing = sum(metric.coalesced_failures + 1 for metric in sight.unplaced.values())
    if missing:
        parts.append(f"{missing} not placed")
    said = ", ".join(parts) or "nothing is placed yet"
    if sight.awaits_promotion and sight.deployment is not None:
        return f"{said}; the canaries are healthy: `wharf deployment promote {sight.deployment.id[:8]}`"
    return said


def picture(sight: "Sight", length_ns: int, talk: "Talk", *, most: int, columns: Set[str]) -> str:
    """All that is worth seeing, with so many allocations at most, and of the groups' counts those that are named."""
    job = sight.job
    parts = [f"{heading(job.id)}  {dim(f'{job.type}, version {sight.version}, for {say_length(length_ns)}')}"]
    parts += _progress(sight, talk)
    parts.append("")
    parts.append(_groups_told(sight, columns))
    shown = _worth_seeing(sight)[:most]
    if shown:
        parts.append("")
        titles = ("Allocation", "Group", "Node", "Version", "Status", "Health", "Since")
        parts.append(
            table(titles, [_row(one, talk) for one in shown], spare=("Version", "Since"), names=("Group", "Node"))
        )
        left = len(_worth_seeing(sight)) - len(shown)
        if left:
            parts.append(dim(f"… and {left} more"))
    latest = max(sight.evaluations, key=lambda one: one.create_index, default=None)
    if latest is not None:
        why = f", because of {latest.triggered_by}"
        parts += ["", f"{dim('Latest evaluation')} {talk.short(latest.id)} {coloured(latest.status)}{dim(why)}"]
    if sight.unplaced:
        parts.append(click.style("Not placed, until there is room:", fg="yellow"))
        parts += [f"  {line}" for line in unplaced_lines(sight.unplaced)]
    if sight.awaits_promotion and sight.deployment is not None:
        parts.append(
            click.style("The canaries are healthy.", fg="green")
            + f" Go on with: wharf deployment promote {sight.deployment.id[:8]}"
        )
    return "\n".join(parts)


def _progress(sight: "Sight", talk: "Talk") -> list[str]:
    deployment = sight.deployment
    if deployment is None:
        wanted = len(sight.current) if sight.is_everywhere else sum(group.count for group in sight.job.groups)
        word = "complete" if sight.is_batch else "running"
        done = sum(one.client_status == word for one in sight.current)
        return [f"{bar(done, wanted)}  {done}/{wanted} {word}"]
    groups = list((deployment.task_groups or {}).values())
    done = sum(group.healthy_allocs for group in groups)
    wanted = sum(
        group.desired_canaries if group.awaits_promotion else group.desired_total for group in groups
    )  # Before a promotion there is no more to come than the canaries.
    by = min((group.require_progress_by for group in groups if group.require_progress_by), default=None)
    until = f"  {dim(f'progress due {say_when(by, talk.now_ns())}')}" if by and deployment.is_active else ""
    what = "canaries healthy" if sight.deployment is not None and deployment.awaits_promotion else "healthy"
    return [
        f"{bar(done, wanted)}  {done}/{wanted} {what}{until}",
        f"{dim('Deployment')} {talk.short(deployment.id)} {coloured(deployment.status)}"
        f"  {dim(deployment.status_description)}",
    ]


def _groups_told(sight: "Sight", columns: Set[str]) -> str:
    rows = _counts(sight)
    titles = [title for title in rows[0][1] if title in ALWAYS or title in columns] if rows else []
    return table(
        ("Group", *titles),
        [(name, *(counts[title] for title in titles)) for name, counts in rows],
        spare=SPARE,
        names=("Group",),
    )


def columns_with_something(sight: "Sight") -> set[str]:
    return {title for _, counts in _counts(sight) for title, count in counts.items() if count != 0}


def _counts(sight: "Sight") -> list[tuple[str, dict[str, Any]]]:
    """Of each group what is told of it, by the titles of the columns, in order."""
    rolled = (sight.deployment.task_groups or {}) if sight.deployment else {}
    has_canaries = any(group.desired_canaries for group in rolled.values())
    rows: list[tuple[str, dict[str, Any]]] = []
    for group in sight.job.groups:
        mine = [one for one in sight.current if one.task_group == group.name]
        old = [one for one in sight.allocations if one.job_version != sight.version and one.task_group == group.name]
        missing = sight.unplaced.get(group.name)
        counts = [sum(one.client_status == status for one in mine) for status in ("pending", "running", "complete")]
        found: dict[str, Any] = {
            "Wanted": len(mine) if sight.is_everywhere else group.count,
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


def _worth_seeing(sight: "Sight") -> "list[AllocationStub]":
    """What goes on or went wrong, of all versions; what changed last is first."""
    kept = [one for one in sight.allocations if one.client_status != "complete" or one in sight.current]
    order = {"failed": 0, "pending": 1}
    return sorted(
        kept,
        key=lambda one: (one.job_version != sight.version, order.get(one.client_status, 2), -one.modify_time, one.name),
    )


def _row(one: "AllocationStub", talk: "Talk") -> tuple[Any, ...]:
    return (
        talk.short(one.id),
        one.task_group,
        one.node_name or talk.short(one.node_id),
        one.job_version,
        one.client_status,
        health_of(one),
        say_when(one.modify_time, talk.now_ns()),
    )


def health_of(one: "AllocationStub") -> str:
    status = one.deployment_status
    if status is None:
        return "-"
    word = {None: "-", True: "healthy", False: "unhealthy"}[status.healthy]
    return f"{word} (canary)" if status.canary else word


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
