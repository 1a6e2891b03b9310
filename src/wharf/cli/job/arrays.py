"""Shows the arrays and steps of a job: counts, the indexes of elements by their state, and text outputs."""

import itertools
from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from wharf.cli.common.errors import CliError

if TYPE_CHECKING:
    from wharf.contract.model.jobs.array_views import ArrayView
    from wharf.contract.model.jobs.step_outputs import ElementOutputs, StepOutputsView

USUAL_VALUES: Final = {"Starting": 0, "Canceled": 0, "Skipped": 0, "MaxRunning": "-", "Attempts": 1}
"""Columns that are left out if all arrays have this value."""
MAX_INDEX_TEXT_CHARS: Final = 200
"""Limits the line with the indexes of failed elements."""
OPEN_LETTER: Final = "."
"""The state of an element that has not begun, as the API of arrays writes it."""
NEVER_BEGAN_LETTERS: Final = frozenset("cx")
"""The states of elements that were canceled or skipped."""
MAX_SHOWN_OUTPUTS: Final = 20
"""Outputs in one view; the others are counted. `--json` and the API have all of them."""
MAX_SHOWN_CHARS: Final = 100
"""Characters of one output, which may be 64 KiB long."""


def render_arrays(arrays: "Sequence[ArrayView]") -> str:
    """Return the table of the arrays of a job, and which elements failed or run."""
    from wharf.cli.common.rendering import render_table

    titles = (
        "Array", "Elements", "Waiting", "Starting", "Running", "Succeeded", "Failed", "Canceled", "Skipped", "MaxRunning", "Attempts",
    )  # fmt: skip
    rows = [
        (
            each.group, each.size, each.counts.waiting, each.counts.starting, each.counts.running, each.counts.succeeded,
            each.counts.failed, each.counts.canceled, each.counts.skipped, each.max_running or "-", len(each.attempts),
        )
        for each in arrays
    ]  # fmt: skip
    # The table must fit in 80 columns, so counts that say nothing are left out.
    shown = [
        title not in USUAL_VALUES or any(row[position] != USUAL_VALUES[title] for row in rows)
        for position, title in enumerate(titles)
    ]
    shown_titles = tuple(itertools.compress(titles, shown))
    shown_rows = [tuple(itertools.compress(row, shown)) for row in rows]
    table = render_table(
        shown_titles, shown_rows, optional_columns=("Attempts", "MaxRunning", "Skipped", "Canceled", "Starting")
    )
    return "\n".join([table, *list_element_lines(arrays, has_names=len(arrays) > 1)])


def list_element_lines(arrays: "Sequence[ArrayView]", *, has_names: bool) -> list[str]:
    """Return which elements of arrays failed or run, and why elements were canceled."""
    lines: list[str] = []
    for each in arrays:
        name = f" of {each.group}" if has_names else ""
        if each.counts.failed:
            lines.append(f"failed{name}: {list_indexes(each, 'f')}")
        if each.failed_element >= 0:
            lines.append(f"canceled{name} because element {each.failed_element} failed")
        if each.counts.running:
            lines.append(f"running{name}: {list_indexes(each, 'r')}")
        if each.counts.starting:
            lines.append(f"starting{name}: {list_indexes(each, 'p')}")
    return lines


def list_indexes(array: "ArrayView", letters: str) -> str:
    """Return the indexes of the elements in these states, such as `3,7-9`; the first ones if there are many."""
    from wharf.contract.model.jobs.array_attempts import decode_runs, format_indexes

    codes = letters.encode()
    text = format_indexes(index for index, state in enumerate(decode_runs(array.states)) if state in codes)
    if len(text) <= MAX_INDEX_TEXT_CHARS:
        return text
    return text[:MAX_INDEX_TEXT_CHARS].rpartition(",")[0] + ", …"


def describe_elements_without_logs(arrays: "Sequence[ArrayView]", indexes: Container[int]) -> str:
    """Return why the selected elements of arrays have no logs. Raises CliError if no such element exists."""
    from wharf.contract.model.jobs.array_attempts import decode_runs

    states = {chr(state) for each in arrays for index, state in enumerate(decode_runs(each.states)) if index in indexes}
    if not states:
        sizes = ", ".join(f"0 to {each.size - 1}" + (f" in {each.group}" if len(arrays) > 1 else "") for each in arrays)
        raise CliError(f"no element has this index: the indexes are {sizes}")
    if states == {OPEN_LETTER}:
        return "no logs yet: no selected element has begun"
    if states <= NEVER_BEGAN_LETTERS:
        return "no logs: no selected element began before it was canceled or skipped"
    return "no logs: no selected element has an allocation"


def describe_results(arrays: "Sequence[ArrayView]") -> str:
    """Return how the elements of arrays ended, such as `490 of 500 elements succeeded, 10 failed`."""
    size = sum(each.size for each in arrays)
    text = f"{sum(each.counts.succeeded for each in arrays)} of {size} elements succeeded"
    if failed := sum(each.counts.failed for each in arrays):
        text += f", {failed} failed"
    if canceled := sum(each.counts.canceled for each in arrays):
        text += f", {canceled} were canceled"
    if skipped := sum(each.counts.skipped for each in arrays):
        text += f", {skipped} were skipped"
    return text


def render_outputs(steps: "Sequence[StepOutputsView]") -> str:
    """Return the first outputs of the steps of a job, each as one line."""
    from wharf.cli.common.rendering import render_table

    rows = [
        (name, *row)
        for step in steps
        for element in step.elements
        for name in (f"{step.group}[{element.index}]",)
        for row in _list_rows(element)
    ]
    text = render_table(("Step", "Output", "Value"), rows[:MAX_SHOWN_OUTPUTS])
    more = len(rows) - MAX_SHOWN_OUTPUTS
    return f"{text}\nand {more} more" if more > 0 else text


def _list_rows(element: "ElementOutputs") -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each output of an element, and why others are missing."""
    for name, text in element.texts.items():
        yield name, _shorten(text)
    if element.problem:
        yield "-", _shorten(element.problem)


def _shorten(text: str) -> str:
    """Return a text as one line of limited length."""
    line = " ".join(text[: 2 * MAX_SHOWN_CHARS].split("\n"))
    return line if len(text) <= MAX_SHOWN_CHARS else line[:MAX_SHOWN_CHARS] + "…"
