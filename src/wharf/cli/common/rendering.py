"""Text in columns: aligned, one record a line, coloured by what a word means where the output is a terminal.

Columns are as wide as what stands in them. A terminal that is too narrow goes without the columns that a table can spare,
gets less of the last one, and of names their two ends; whatever else reads gets all.

Numbers as a line of small bars.
"""

import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

import click

COLUMN_GAP: Final = "  "
MIN_COLUMN_WIDTH: Final = 10
"""A column is not cut to less than this."""
MIN_NAME_WIDTH: Final = 12
"""A name is not cut to less than this: then it could be any."""
GOOD_STATES: Final = frozenset({"running", "ready", "eligible", "successful", "complete", "alive", "healthy", "active"})
BAD_STATES: Final = frozenset({"failed", "lost", "down", "dead (failed)", "unhealthy"})
PENDING_STATES: Final = frozenset({
    "pending", "blocked", "paused", "draining", "ineligible", "initializing", "unknown", "starting", "disconnected",
})  # fmt: skip


def colour_state(word: str) -> str:
    """A status in its colour; click leaves colours out where the output is no terminal."""
    first = word.strip()
    if first in GOOD_STATES:
        return click.style(word, fg="green")
    if first in BAD_STATES:
        return click.style(word, fg="red")
    if first in PENDING_STATES:
        return click.style(word, fg="yellow")
    return word


def render_heading(text: str) -> str:
    return click.style(text, bold=True)


def style_dim(text: str) -> str:
    return click.style(text, dim=True)


def get_terminal_width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def render_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    indent: str = "",
    optional_columns: Sequence[str] = (),
    shortenable_columns: Sequence[str] = (),
    max_width: int | None = None,
) -> str:
    """`titles` above the rows. Numbers stand to the right. Without rows it is the titles alone.

    `width`: how wide it may be at most; without, as the terminal is, if it is one. `spare`: the columns that are left
    out of what is too wide, what is missed least first. `names`: those that may be shown without their middle, where that
    is not enough.
    """
    columns = [(title, [str(cell) for cell in cells]) for title, *cells in zip(titles, *rows, strict=True)]
    if max_width is None and sys.stdout.isatty():
        max_width = get_terminal_width()
    if max_width is not None:
        columns = _fitting(columns, optional_columns, shortenable_columns, max_width - len(indent))
    texts = list(zip(*(cells for _, cells in columns), strict=True))
    is_number = [
        bool(cells) and all(_is_number(cell) for cell in cells) and any(cell != "-" for cell in cells)
        for _, cells in columns
    ]
    widths = [_width(column) for column in columns]
    lines = [render_heading(_line([title for title, _ in columns], widths, is_number, indent))]
    lines += [_line([colour_state(cell) for cell in row], widths, is_number, indent) for row in texts]
    return "\n".join(lines)


Column = tuple[str, list[str]]
"""A title, and what stands beneath it."""


def _fitting(columns: list[Column], spare: Sequence[str], names: Sequence[str], width: int) -> list[Column]:
    for title in spare:
        if _length(columns) <= width:
            break
        columns = [column for column in columns if column[0] != title]
    leasts = [_least(column, names, is_last=place == len(columns) - 1) for place, column in enumerate(columns)]
    widths = [_width(column) for column in columns]
    over = _length(columns) - width
    if over > sum(widths) - sum(leasts):
        return columns  # There would be nothing left to read: then the terminal wraps it.
    for place in sorted(range(len(columns)), key=lambda place: (columns[place][0] in names, -widths[place])):
        less = max(0, min(over, widths[place] - leasts[place]))
        over -= less
        widths[place] -= less
    return [
        (title, [_without_middle(cell, room) if title in names else _without_end(cell, room) for cell in cells])
        for (title, cells), room in zip(columns, widths, strict=True)
    ]


def _least(column: Column, names: Sequence[str], *, is_last: bool) -> int:
    """How narrow a column may become."""
    title, width = column[0], _width(column)
    if title in names:
        return min(width, MIN_NAME_WIDTH)
    return min(width, max(_cells(title), MIN_COLUMN_WIDTH)) if is_last else width


def _without_end(text: str, room: int) -> str:
    return text if _cells(text) <= room else f"{_beginning(text, room - 1)}…"


def _without_middle(text: str, room: int) -> str:
    if _cells(text) <= room:
        return text
    end = _beginning(text[::-1], (room - 1) // 2)[::-1]
    return f"{_beginning(text, room - 1 - _cells(end))}…{end}"


def _beginning(text: str, room: int) -> str:
    """As many letters as there is room for, where some are two wide."""
    for length, letter in enumerate(text):
        room -= _cells(letter)
        if room < 0:
            return text[:length]
    return text


def _length(columns: Sequence[Column]) -> int:
    return sum(map(_width, columns)) + len(COLUMN_GAP) * (len(columns) - 1)


def _width(column: Column) -> int:
    return max(_cells(click.unstyle(text)) for text in (column[0], *column[1]))


def _cells(text: str) -> int:
    """How much room it takes on a terminal, where some letters are two wide and some marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def render_no_rows(plural: str, *, is_filtered: bool) -> str:
    """In the place of a table without rows. `is_chosen`: whether something was asked of them, such as a filter."""
    return f"No {plural} match." if is_filtered else f"There are no {plural}."


def natural_sort_key(name: str) -> list[tuple[int, str]]:
    """By this names are sorted as people count: node-2 before node-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def render_pairs(entries: Iterable[tuple[str, object]], *, indent: str = "") -> str:
    """Names and values, one a line. What is empty is left out."""
    kept = [(name, str(value)) for name, value in entries if value not in ("", None)]
    width = max((len(name) for name, _ in kept), default=0)
    return "\n".join(
        f"{indent}{style_dim(f'{name:<{width}}')}{COLUMN_GAP}{colour_state(value)}" for name, value in kept
    )


def render_section(title: str, body: str) -> str:
    """An empty line, a heading, and what stands beneath."""
    return f"\n{render_heading(title)}\n{body}"


def render_bar(done: int, total: int, *, width: int = 20) -> str:
    """How much of a total is done, as a line that fills."""
    filled = 0 if total <= 0 else min(width, round(width * done / total))
    return click.style("━" * filled, fg="green") + click.style("─" * (width - filled), dim=True)


def _line(cells: Sequence[str], widths: Sequence[int], is_number: Sequence[bool], indent: str) -> str:
    padded = []
    for cell, width, right in zip(cells, widths, is_number, strict=True):
        space = " " * (width - _cells(click.unstyle(cell)))
        padded.append(space + cell if right else cell + space)
    return (indent + COLUMN_GAP.join(padded)).rstrip()


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(",", "").removesuffix("%").isdigit()


SPARKLINE_BARS: Final = "▁▂▃▄▅▆▇█"
SPARKLINE_WIDTH: Final = 20


def render_sparkline(numbers: Sequence[float], *, max_value: float) -> str:
    """Each bar the greatest of as many numbers as it stands for. The highest bar is `top`, or what goes beyond it."""
    if not numbers:
        return ""
    each = -(-len(numbers) // SPARKLINE_WIDTH)
    # From the end: the last bar is always a whole one.
    begin = len(numbers) % each
    groups = [numbers[:begin]] if begin else []
    groups += [numbers[at : at + each] for at in range(begin, len(numbers), each)]
    highest = max(max_value, *numbers)
    return "".join(
        SPARKLINE_BARS[min(len(SPARKLINE_BARS) - 1, int(max(group) / highest * len(SPARKLINE_BARS)))]
        for group in groups
    )
