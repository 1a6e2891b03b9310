"""Text layout for terminals: tables, key-value lists, headings, colours of states, bars.

On a terminal, a table that is too wide drops its optional columns, then shortens names and the last column. Other
output is never shortened.
"""

import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

import click

from wharf.cli.common.terminal import style

COLUMN_GAP: Final = "  "
MIN_COLUMN_WIDTH: Final = 10
"""The last column of a table is not cut to fewer characters."""
MIN_NAME_WIDTH: Final = 12
"""A name is not cut to fewer characters, so that names stay different."""
GOOD_STATES: Final = frozenset({"running", "ready", "eligible", "successful", "complete", "alive", "healthy", "active"})
BAD_STATES: Final = frozenset({"failed", "lost", "down", "dead (failed)", "unhealthy"})
PENDING_STATES: Final = frozenset({
    "pending", "blocked", "paused", "draining", "ineligible", "initializing", "unknown", "starting", "disconnected",
})  # fmt: skip


def colour_state(word: str) -> str:
    """Return a state in the colour of its meaning. click removes colours if the output is not a terminal."""
    state = word.strip()
    if state in GOOD_STATES:
        return style(word, fg="green")
    if state in BAD_STATES:
        return style(word, fg="red")
    if state in PENDING_STATES:
        return style(word, fg="yellow")
    return word


def render_heading(text: str) -> str:
    return style(text, bold=True)


def style_dim(text: str) -> str:
    return style(text, dim=True)


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
    """Return a table with `titles` above the rows. Columns of numbers are aligned to the right.

    `max_width` is in characters; by default the width of the terminal, or no limit if the output is not a terminal.
    If the table is wider, `optional_columns` are dropped, least important first. If that is not enough, the
    `shortenable_columns` lose the middle of their texts, and the last column loses the end.
    """
    columns = [(title, [_join_lines(str(cell)) for cell in cells]) for title, *cells in zip(titles, *rows, strict=True)]
    if max_width is None and sys.stdout.isatty():
        max_width = get_terminal_width()
    if max_width is not None:
        columns = _fit_to_width(columns, optional_columns, shortenable_columns, max_width - len(indent))
    texts = list(zip(*(cells for _, cells in columns), strict=True))
    is_number = [
        bool(cells) and all(_is_number(cell) for cell in cells) and any(cell != "-" for cell in cells)
        for _, cells in columns
    ]
    widths = [_column_width(column) for column in columns]
    lines = [render_heading(_format_row([title for title, _ in columns], widths, is_number, indent))]
    lines += [_format_row([colour_state(cell) for cell in row], widths, is_number, indent) for row in texts]
    return "\n".join(lines)


def _join_lines(text: str, separator: str = " ") -> str:
    """Return a text whose lines cannot be taken for other rows of the output. Only a terminal needs that."""
    return separator.join(text.splitlines()) if "\n" in text and sys.stdout.isatty() else text


Column = tuple[str, list[str]]
"""A title and the cells below it."""


def _fit_to_width(
    columns: list[Column], optional_columns: Sequence[str], shortenable_columns: Sequence[str], max_width: int
) -> list[Column]:
    """Return the columns of a table, made to fit: without optional ones, then with shortened cells.

    If even the shortest form is too wide, the columns are returned with their full texts, and the terminal wraps them.
    """
    for title in optional_columns:
        if _table_width(columns) <= max_width:
            break
        columns = [column for column in columns if column[0] != title]
    last = len(columns) - 1
    min_widths = [
        _min_column_width(column, shortenable_columns, is_last=position == last)
        for position, column in enumerate(columns)
    ]
    widths = [_column_width(column) for column in columns]
    excess = _table_width(columns) - max_width
    if excess > sum(widths) - sum(min_widths):
        return columns  # Even the shortest form is too wide: let the terminal wrap the full text.
    # Cut the columns of plain text before names, and wide columns before narrow ones.
    for position in sorted(
        range(len(columns)), key=lambda position: (columns[position][0] in shortenable_columns, -widths[position])
    ):
        cut = max(0, min(excess, widths[position] - min_widths[position]))
        excess -= cut
        widths[position] -= cut
    return [
        (
            title,
            [_cut_middle(cell, width) if title in shortenable_columns else _cut_end(cell, width) for cell in cells],
        )
        for (title, cells), width in zip(columns, widths, strict=True)
    ]


def _min_column_width(column: Column, shortenable_columns: Sequence[str], *, is_last: bool) -> int:
    """Return the width to which a column may be cut. Only names and the last column may be cut."""
    title, width = column[0], _column_width(column)
    if title in shortenable_columns:
        return min(width, MIN_NAME_WIDTH)
    return min(width, max(_text_width(title), MIN_COLUMN_WIDTH)) if is_last else width


def _cut_end(text: str, width: int) -> str:
    return text if _text_width(text) <= width else f"{_take_prefix(text, width - 1)}…"


def _cut_middle(text: str, width: int) -> str:
    if _text_width(text) <= width:
        return text
    end = _take_prefix(text[::-1], (width - 1) // 2)[::-1]
    return f"{_take_prefix(text, width - 1 - _text_width(end))}…{end}"


def _take_prefix(text: str, width: int) -> str:
    """Return the longest prefix of a text that fits in `width` terminal cells; some characters are two cells wide."""
    for length, letter in enumerate(text):
        width -= _text_width(letter)
        if width < 0:
            return text[:length]
    return text


def _table_width(columns: Sequence[Column]) -> int:
    return sum(map(_column_width, columns)) + len(COLUMN_GAP) * (len(columns) - 1)


def _column_width(column: Column) -> int:
    return max(_text_width(click.unstyle(text)) for text in (column[0], *column[1]))


def _text_width(text: str) -> int:
    """Return the width of a text in terminal cells: wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def render_no_rows(plural: str, *, is_filtered: bool) -> str:
    """Return the text that replaces a table without rows. `is_filtered`: the user gave a filter or a similar option."""
    return f"No {plural} match." if is_filtered else f"No {plural}."


def natural_sort_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that compares numbers within names by value: node-2 before node-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def render_pairs(entries: Iterable[tuple[str, object]], *, indent: str = "") -> str:
    """Return names and values, one pair a line. Pairs with an empty value or None are omitted."""
    pairs = [(name, str(value)) for name, value in entries if value not in ("", None)]
    width = max((len(name) for name, _ in pairs), default=0)
    begin = "\n" + " " * (len(indent) + width + len(COLUMN_GAP))
    return "\n".join(
        f"{indent}{style_dim(f'{name:<{width}}')}{COLUMN_GAP}{_join_lines(colour_state(value), begin)}"
        for name, value in pairs
    )


def render_section(title: str, body: str) -> str:
    """Return an empty line, a heading and the body."""
    return f"\n{render_heading(title)}\n{body}"


def render_bar(done: int, total: int, *, width: int = 20) -> str:
    """Return a progress bar that is filled by `done / total`."""
    filled = 0 if total <= 0 else min(width, round(width * done / total))
    return style("━" * filled, fg="green") + style("─" * (width - filled), dim=True)


def _format_row(cells: Sequence[str], widths: Sequence[int], is_number: Sequence[bool], indent: str) -> str:
    """Return the cells of one row, padded to the widths of their columns."""
    padded = []
    for cell, width, right in zip(cells, widths, is_number, strict=True):
        space = " " * (width - _text_width(click.unstyle(cell)))
        padded.append(space + cell if right else cell + space)
    return (indent + COLUMN_GAP.join(padded)).rstrip()


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(",", "").removesuffix("%").isdigit()


SPARKLINE_BARS: Final = "▁▂▃▄▅▆▇█"
SPARKLINE_WIDTH: Final = 20


def render_sparkline(numbers: Sequence[float], *, max_value: float) -> str:
    """Return numbers as a line of at most SPARKLINE_WIDTH bars; each bar shows the maximum of several numbers.

    The highest bar stands for `max_value`, or for the largest number if that is greater.
    """
    if not numbers:
        return ""
    numbers_per_bar = -(-len(numbers) // SPARKLINE_WIDTH)
    # The newest numbers are at the end: only the first bar may stand for fewer numbers than the others.
    begin = len(numbers) % numbers_per_bar
    groups = [numbers[:begin]] if begin else []
    groups += [numbers[start : start + numbers_per_bar] for start in range(begin, len(numbers), numbers_per_bar)]
    highest = max(max_value, *numbers)
    return "".join(
        SPARKLINE_BARS[min(len(SPARKLINE_BARS) - 1, int(max(group) / highest * len(SPARKLINE_BARS)))]
        for group in groups
    )
