"""The layout of `wharf top`: totals, then tables of nodes, jobs and waiting jobs. Pure: reads no server and no clock."""

import enum
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from wharf.cli.common.rendering import (
    get_terminal_width,
    render_heading,
    render_section,
    render_table,
    render_usage_bar,
    style_dim,
    wrap_words,
)
from wharf.cli.common.terminal import style
from wharf.cli.common.times import format_relative_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wharf.cli.top.measurements import MeasuredNodes
    from wharf.contract.model.usage import ClusterUsage, NodeUsage, WaitingJob

FIXED_LINES: Final = 13
"""Lines of the display besides rows: totals, headings, empty lines and the line of keys."""
BAR_WIDTH: Final = 10
MIN_ROWS: Final = 2
"""Rows of a section even on a low terminal."""
KEYS_TEXT: Final = "Tab section  ↑↓ select  Enter open  c m a n sort  q quit"
PAGE_KEYS_TEXT: Final = "↑↓ scroll  Enter or q back"


class Section(enum.Enum):
    """The tables of the display, in their order."""

    NODES = "nodes"
    JOBS = "jobs"
    WAITING = "waiting"


@dataclass
class TopState:
    """What the user has chosen: order, section, selected rows, and the page that is open."""

    order: str = "cpu"
    section: Section = Section.NODES
    positions: dict[Section, int] = field(default_factory=dict)
    page: list[str] | None = None
    first_line: int = 0

    def select_next_section(self) -> None:
        sections = list(Section)
        self.section = sections[(sections.index(self.section) + 1) % len(sections)]

    def get_position(self, usage: "ClusterUsage") -> int:
        """Return the selected row of the current section."""
        return min(self.positions.get(self.section, 0), max(0, _count_rows(usage, self.section) - 1))

    def move_selection(self, usage: "ClusterUsage", step: int) -> None:
        last = max(0, _count_rows(usage, self.section) - 1)
        self.positions[self.section] = min(last, max(0, self.get_position(usage) + step))

    def open_page(self, text: str) -> None:
        self.page, self.first_line = wrap_words(text, get_terminal_width()).splitlines(), 0

    def scroll(self, step: int) -> None:
        """Move the open page by lines. Its last line stays visible."""
        last = max(0, len(self.page or ()) - 1)
        self.first_line = min(last, max(0, self.first_line + step))


def get_shown_nodes(usage: "ClusterUsage", state: TopState) -> "Sequence[NodeUsage]":
    """Return the nodes whose rows are visible on the terminal."""
    first, count = _get_window(usage, state, Section.NODES)
    return usage.nodes[first : first + count]


def render_screen(usage: "ClusterUsage", measured: "MeasuredNodes", state: TopState, now_ns: int) -> str:
    """Return the whole display for the size of the terminal: the tables, or the open page."""
    width, height = get_terminal_width(), shutil.get_terminal_size().lines
    if state.page is not None:
        shown = state.page[state.first_line : state.first_line + height - 1]
        return "\n".join([*shown, *[""] * (height - 1 - len(shown)), style_dim(PAGE_KEYS_TEXT)])
    lines = _render_totals(usage, width).splitlines()
    for section in Section:
        first, count = _get_window(usage, state, section)
        lines += ["", _render_title(usage, state, section, first, count)]
        table = _render_section_table(usage, measured, section, first, count, width - 2, now_ns).splitlines()
        selected = state.get_position(usage) - first + 1 if section is state.section else -1
        lines += [
            f"{style('▸', fg='cyan', bold=True)} {line}" if number == selected else f"  {line}"
            for number, line in enumerate(table)
        ]
    lines = lines[: height - 1]
    return "\n".join([*lines, *[""] * (height - 1 - len(lines)), style_dim(KEYS_TEXT[:width])])


def render_snapshot(usage: "ClusterUsage", measured: "MeasuredNodes", now_ns: int) -> str:
    """Return all rows of the reply as plain tables."""
    parts = [_render_totals(usage, get_terminal_width())]
    for section in Section:
        count = _count_rows(usage, section)
        table = _render_section_table(usage, measured, section, 0, count, None, now_ns)
        parts.append(render_section(_format_title(usage, section, 0, count), table))
    return "\n".join(parts)


def _count_rows(usage: "ClusterUsage", section: Section) -> int:
    return len({Section.NODES: usage.nodes, Section.JOBS: usage.jobs, Section.WAITING: usage.waiting}[section])


def _get_window(usage: "ClusterUsage", state: TopState, section: Section) -> tuple[int, int]:
    """Return the first visible row of a section, and how many rows are visible. The selected row is one of them.

    Nodes and jobs share the lines that waiting jobs do not need; rows that a section does not need go to the others.
    """
    free = max(3 * MIN_ROWS, shutil.get_terminal_size().lines - FIXED_LINES)
    counts = {each: max(1, _count_rows(usage, each)) for each in Section}
    rows = {each: min(counts[each], MIN_ROWS) for each in Section}
    while sum(rows.values()) < free and any(rows[each] < counts[each] for each in Section):
        smallest = min((each for each in Section if rows[each] < counts[each]), key=lambda each: rows[each])
        rows[smallest] += 1
    position = min(state.positions.get(section, 0), counts[section] - 1)
    first = max(0, position - rows[section] + 1)
    return first, rows[section]


def _render_totals(usage: "ClusterUsage", width: int) -> str:
    """Return how many nodes are ready, and the requested CPU and memory of all nodes that are up."""
    bar_width = max(BAR_WIDTH, min(40, width - 50))
    return "\n".join([
        f"{'Nodes':<8}{usage.ready_count} of {usage.node_count} ready",
        _render_total("CPU", usage.cpu, usage.cpu_capacity, "MHz", bar_width),
        _render_total("Memory", usage.memory_mb, usage.memory_capacity_mb, "MB", bar_width),
    ])  # fmt: skip


def _render_total(name: str, requested: int, capacity: int, unit: str, bar_width: int) -> str:
    bar = render_usage_bar(requested, capacity, width=bar_width)
    return f"{name:<8}{bar} {_format_share(requested, capacity):>5}  {requested:,}/{capacity:,} {unit} requested"


def _render_title(usage: "ClusterUsage", state: TopState, section: Section, first: int, count: int) -> str:
    title = _format_title(usage, section, first, count)
    title += f", by {state.order}" if section is not Section.WAITING else ""
    return render_heading(style(title, fg="cyan") if section is state.section else title)


def _format_title(usage: "ClusterUsage", section: Section, first: int, count: int) -> str:
    """Return the name of a section, and which of its rows are shown if these are not all."""
    name, total = {
        Section.NODES: ("Nodes", usage.node_count),
        Section.JOBS: ("Jobs", usage.job_count),
        Section.WAITING: ("Waiting jobs", usage.waiting_count),
    }[section]
    return f"{name} {first + 1}-{first + count} of {total:,}" if 0 < count < total else name


def _render_section_table(
    usage: "ClusterUsage",
    measured: "MeasuredNodes",
    section: Section,
    first: int,
    count: int,
    max_width: int | None,
    now_ns: int,
) -> str:
    """Return the rows of a section as a table, or a sentence if it has none."""
    last = first + count
    match section:
        case Section.NODES if usage.nodes:
            return _render_nodes(usage.nodes[first:last], measured, max_width)
        case Section.JOBS if usage.jobs:
            has_namespaces = len({job.namespace for job in usage.jobs}) > 1
            rows = [
                (
                    f"{job.namespace}/{job.id}" if has_namespaces else job.id, job.type or "-",
                    f"{job.running}/{job.allocations}" if job.allocations else "-",
                    f"{job.cpu:,}", f"{job.memory_mb:,}",
                )
                for job in usage.jobs[first:last]
            ]  # fmt: skip
            titles = ("Job", "Type", "Running", "CPU MHz", "Memory MB")
            return render_table(
                titles, rows, max_width=max_width, optional_columns=("Type",), shortenable_columns=("Job",)
            )
        case Section.WAITING if usage.waiting:
            waiting = [
                (each.job_id, _format_waiting(each), format_relative_time(each.since, now_ns), each.reason)
                for each in usage.waiting[first:last]
            ]
            return render_table(
                ("Job", "Waiting", "Since", "Waits for"),
                waiting,
                max_width=max_width,
                optional_columns=("Since", "Waiting"),
                shortenable_columns=("Job",),
            )
    return {
        Section.NODES: "No nodes.",
        Section.JOBS: "No job has allocations that run or start.",
        Section.WAITING: "Nothing waits for capacity.",
    }[section]


def _render_nodes(nodes: "Sequence[NodeUsage]", measured: "MeasuredNodes", max_width: int | None) -> str:
    """Return the table of nodes: what is requested, as a bar and in percent, and what is in use."""
    rows = [
        (
            node.name or node.id[:8], node.status, node.allocations,
            render_usage_bar(node.cpu, node.cpu_capacity, width=BAR_WIDTH), _format_share(node.cpu, node.cpu_capacity),
            _format_percent(measured.get(node.id).cpu), f"{node.cpu_capacity:,}",
            render_usage_bar(node.memory_mb, node.memory_capacity_mb, width=BAR_WIDTH),
            _format_share(node.memory_mb, node.memory_capacity_mb), _format_percent(measured.get(node.id).memory),
            f"{node.memory_capacity_mb:,}",
        )
        for node in nodes
    ]  # fmt: skip
    titles = (
        "Node", "Status", "Allocs", "CPU", "CPU req.", "used", "MHz", "Memory", "Mem. req.", "used ", "MB",
    )  # fmt: skip
    return render_table(
        titles,
        rows,
        max_width=max_width,
        optional_columns=("MHz", "MB", "Allocs", "CPU", "Memory", "Status"),
        shortenable_columns=("Node",),
    )


def _format_waiting(job: "WaitingJob") -> str:
    """Return what of a job waits, such as `1,998 elements` or `2 allocations`."""
    if not job.unplaced:
        return "-"
    allocations = job.unplaced - job.elements
    noun = "element" if not allocations else "allocation"
    if allocations and job.elements:
        return f"{job.unplaced:,} elements and allocations"
    return f"{job.unplaced:,} {noun}{'s' if job.unplaced > 1 else ''}"


def _format_share(part: int, total: int) -> str:
    return f"{100 * part // total} %" if total else "-"


def _format_percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} %"
