"""The arrays of a job: the states of all elements as one picture, and those that failed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from wharf.contract.model.allocations.allocation import AllocationStub
from wharf.contract.model.allocations.names import parse_index
from wharf.contract.model.jobs.array_attempts import (
    CANCELED,
    FAILED,
    OPEN,
    RUNNING,
    SKIPPED,
    STARTING,
    SUCCEEDED,
    decode_runs,
    format_indexes,
)
from wharf.contract.model.jobs.array_views import ArrayCounts, ArrayView
from wharf.web.views.allocations import AllocationRow, build_allocation_row
from wharf.web.views.logs import LineView

MAX_CELLS: Final = 1_000
"""Cells of the picture of an array. With more elements, a cell is several elements."""
MAX_COLUMNS: Final = 50
CELL: Final = 10
"""The side of a cell with its gap, in the units of the picture."""
GAP: Final = 2
MAX_FAILED_ELEMENTS: Final = 20
"""Failed elements of a job that its page lists, those that began last first."""
MAX_INDEX_TEXT_CHARS: Final = 400
"""Limits the text with the indexes of all failed elements."""
STATES: Final = (
    (FAILED, "failed", "failed"),
    (RUNNING, "running", "running"),
    (STARTING, "starting", "starting"),
    (OPEN, "waiting", "waiting"),
    (CANCELED, "canceled", "canceled"),
    (SKIPPED, "skipped", "skipped"),
    (SUCCEEDED, "succeeded", "succeeded"),
)
"""The letter of a state, the field of its count, and its word. The most urgent one is the first: it colors a cell of several."""


class CellGroup(msgspec.Struct, frozen=True):
    """The cells with one state, as one path of the picture."""

    state: str
    path: str


class StatesPicture(msgspec.Struct, frozen=True):
    """The states of the elements of an array, row by row."""

    width: int
    height: int
    per_cell: int
    """How many elements a cell is."""
    cells: tuple[CellGroup, ...]


class FailedElement(msgspec.Struct, frozen=True):
    """An element that failed, with the allocation that ran it last."""

    index: int
    row: AllocationRow
    last_lines: tuple[LineView, ...]


class ArrayPanel(msgspec.Struct, frozen=True):
    """An array as the page of its job shows it."""

    group: str
    size: int
    text: str
    """How many elements have each state."""
    legend: tuple[tuple[str, int], ...]
    """The states that occur, each with its number of elements."""
    picture: StatesPicture | None
    """`None` for an array of one element."""
    failed_indexes: str
    """The indexes of all failed elements, or of the first ones if there are many."""
    failed: tuple[FailedElement, ...]
    can_rerun: bool
    """Whether elements failed or were canceled."""


class JobArraysView(msgspec.Struct, frozen=True):
    """The arrays of a job."""

    panels: tuple[ArrayPanel, ...] = ()

    @property
    def can_rerun(self) -> bool:
        """Whether elements failed or were canceled."""
        return any(panel.can_rerun for panel in self.panels)

    def find(self, group: str) -> ArrayPanel | None:
        """Return the array of a group, or `None` if the group has none."""
        return next((panel for panel in self.panels if panel.group == group), None)


def find_failed_elements(arrays: Iterable[ArrayView], failed: Iterable[AllocationStub]) -> list[AllocationStub]:
    """Return the newest allocation of each failed element, the newest first, at most `MAX_FAILED_ELEMENTS`.

    An element that runs again is not failed. The allocation of an element that failed long ago may be deleted.
    """
    states = {each.group: decode_runs(each.states) for each in arrays}
    newest: dict[tuple[str, int], AllocationStub] = {}
    for allocation in sorted(failed, key=lambda each: each.create_index, reverse=True):
        index = parse_index(allocation.name)
        if states.get(allocation.task_group, b"")[index : index + 1] == FAILED:
            newest.setdefault((allocation.task_group, index), allocation)
    return list(newest.values())[:MAX_FAILED_ELEMENTS]


def build_arrays_view(
    arrays: Sequence[ArrayView],
    failed: Sequence[AllocationStub],
    last_lines: Mapping[str, tuple[LineView, ...]],
    now_ns: int,
) -> JobArraysView:
    """Return the arrays of a job. `failed` are those of `find_failed_elements`; `last_lines` are by the ID of the allocation."""
    return JobArraysView(tuple(_build_panel(each, failed, last_lines, now_ns) for each in arrays))


def _build_panel(
    array: ArrayView, failed: Sequence[AllocationStub], last_lines: Mapping[str, tuple[LineView, ...]], now_ns: int
) -> ArrayPanel:
    states = decode_runs(array.states)
    counts = array.counts
    return ArrayPanel(
        group=array.group,
        size=array.size,
        text=describe_counts(counts, array.size),
        legend=tuple((word, getattr(counts, field)) for _, field, word in STATES if getattr(counts, field)),
        picture=draw_states(states) if len(states) > 1 else None,
        failed_indexes=list_indexes(states),
        failed=tuple(
            FailedElement(parse_index(each.name), build_allocation_row(each, now_ns), last_lines.get(each.id, ()))
            for each in failed
            if each.task_group == array.group
        ),
        can_rerun=bool(counts.failed + counts.canceled),
    )


def describe_counts(counts: ArrayCounts, size: int) -> str:
    """Return how many elements have each state, such as `45 of 50 succeeded, 2 running, 3 failed`."""
    others = [
        f"{getattr(counts, field):,} {word}" for _, field, word in (*STATES[1:6], STATES[0]) if getattr(counts, field)
    ]
    return ", ".join((f"{counts.succeeded:,} of {size:,} succeeded", *others))


def list_indexes(states: bytes) -> str:
    """Return the indexes of the failed elements, such as `3,7-9`, or of the first ones."""
    text = format_indexes(index for index, state in enumerate(states) if state == FAILED[0])
    if len(text) <= MAX_INDEX_TEXT_CHARS:
        return text
    return f"{text[:MAX_INDEX_TEXT_CHARS].rpartition(',')[0]}, …"


def draw_states(states: bytes) -> StatesPicture:
    """Return the picture of the states of elements: all cells of one state are one path, so it is small at any size."""
    per_cell = -(-len(states) // MAX_CELLS)
    letters = bytes(letter[0] for letter, _, _ in STATES)
    if per_cell > 1:
        parts = (states[start : start + per_cell] for start in range(0, len(states), per_cell))
        states = bytes(next((letter for letter in letters if letter in part), OPEN[0]) for part in parts)
    columns = min(MAX_COLUMNS, len(states))
    paths: dict[int, list[str]] = {}
    for place, state in enumerate(states):
        row, column = divmod(place, columns)
        paths.setdefault(state, []).append(f"M{column * CELL} {row * CELL}h{CELL - GAP}v{CELL - GAP}h-{CELL - GAP}z")
    return StatesPicture(
        width=columns * CELL - GAP,
        height=-(-len(states) // columns) * CELL - GAP,
        per_cell=per_cell,
        cells=tuple(CellGroup(word, "".join(paths[letter[0]])) for letter, _, word in STATES if letter[0] in paths),
    )
