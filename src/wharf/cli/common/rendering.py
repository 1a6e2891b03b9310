"""Text layout for terminals: tables, key-value lists, headings, colours of states, bars.

On a terminal, a table that is too wide drops its optional columns, then shortens names and the last column. Other
output is never shortened.
"""

import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, TextIO

import click

from wharf.cli.common.terminal import style

COLUMN_GAP: Final = "  "
MIN_COLUMN_WIDTH: Final = 10
"""The last column of a table is not cut to fewer characters."""
MIN_COLUMNS: Final = 2
"""A table that is still too wide loses columns from the right, but keeps this number of them."""
MIN_NAME_WIDTH: Final = 12
"""A name is not cut to fewer characters, so that names stay different."""
USUAL_NAME_WIDTH: Final = 30
"""Names are cut to this width before optional columns are dropped, so that one long name does not displace them."""
PROSE_TITLES: Final = frozenset({"Description", "Message", "Output", "Waits for"})
"""Titles of columns of sentences. As the last column, they are wrapped instead of cut."""
MIN_PROSE_WIDTH: Final = 20
MAX_PROSE_LINES: Final = 4
"""Limits the height of a row."""
GOOD_STATES: Final = frozenset(
    {"running", "ready", "eligible", "successful", "complete", "alive", "healthy", "active", "scheduled", "succeeded"}
)
BAD_STATES: Final = frozenset({"failed", "lost", "down", "unhealthy"})
PENDING_STATES: Final = frozenset({
    "pending", "blocked", "paused", "draining", "ineligible", "initializing", "unknown", "starting", "waiting", "stopping", "disconnected",
    "gated", "canceling",
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
    If the table is wider, long texts of the `shortenable_columns` lose their middle, and a last column of sentences is
    wrapped. If that is not enough, `optional_columns` are dropped, least important first. Then texts get shorter, another
    last column loses the ends of its texts, and columns at the right are dropped.
    """
    columns = [(title, [_join_lines(str(cell)) for cell in cells]) for title, *cells in zip(titles, *rows, strict=True)]
    if max_width is None and sys.stdout.isatty():
        max_width = get_terminal_width()
    if max_width is not None:
        columns = _fit_to_width(columns, optional_columns, shortenable_columns, max_width - len(indent))
    is_number = [
        title not in ID_TITLES
        and bool(cells)
        and all(_is_number(cell) for cell in cells)
        and any(cell != "-" for cell in cells)
        for title, cells in columns
    ]
    texts = list(zip(*(cells for _, cells in columns), strict=True))
    if max_width is not None and texts:
        texts = [line for row in texts for line in _split_row(row)]
        columns = [(title, [row[position] for row in texts]) for position, (title, _) in enumerate(columns)]
    widths = [_column_width(column) for column in columns]
    lines = [render_heading(_format_row([title for title, _ in columns], widths, is_number, indent))]
    lines += [_format_row([colour_state(cell) for cell in row], widths, is_number, indent) for row in texts]
    return "\n".join(lines)


def _join_lines(text: str, separator: str = " ") -> str:
    """Return a text whose lines cannot be taken for other rows of the output. Only a terminal needs that."""
    return separator.join(text.splitlines()) if "\n" in text and sys.stdout.isatty() else text


def _split_row(cells: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the lines of a row, whose last cell may be wrapped."""
    *first, last = cells
    begin, *others = last.split("\n")
    return [(*first, begin), *((*("" for _ in first), other) for other in others)]


_EXACT_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:")
Column = tuple[str, list[str]]
"""A title and the cells below it."""


def _fit_to_width(
    columns: list[Column], optional_columns: Sequence[str], shortenable_columns: Sequence[str], max_width: int
) -> list[Column]:
    """Return the columns of a table, made to fit: without optional ones, without those at the right, with shortened cells.

    If even the shortest form is too wide, the columns are returned with their full texts, and the terminal wraps them.
    """
    for title in optional_columns:
        if _usual_table_width(columns, shortenable_columns) <= max_width:
            break
        columns = [column for column in columns if column[0] != title]
    while _min_table_width(columns, shortenable_columns) > max_width and len(columns) > MIN_COLUMNS:
        columns = columns[:-1]
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
    fitted = [
        (
            title,
            [_cut_middle(cell, width) if title in shortenable_columns else _cut_end(cell, width) for cell in cells],
        )
        for (title, cells), width in zip(columns, widths, strict=True)
    ]
    title, cells = columns[-1]
    if title in PROSE_TITLES:
        fitted[-1] = title, [_wrap_cell(cell, widths[-1]) for cell in cells]
    return fitted


def _wrap_cell(text: str, width: int) -> str:
    """Return a text in lines of this width; the last line is cut if there are too many."""
    lines = [_cut_end(line, width) for line in wrap_words(text, width).split("\n")]
    if len(lines) <= MAX_PROSE_LINES:
        return "\n".join(lines)
    rest = " ".join(lines[MAX_PROSE_LINES - 1 :])
    return "\n".join([*lines[: MAX_PROSE_LINES - 1], _cut_end(rest, width)])


def _usual_table_width(columns: Sequence[Column], shortenable_columns: Sequence[str]) -> int:
    """Return the width of a table whose long names are cut and whose sentences are wrapped."""
    last = len(columns) - 1
    widths = (
        min(
            _column_width(column),
            USUAL_NAME_WIDTH
            if column[0] in shortenable_columns
            else _min_column_width(column, shortenable_columns, is_last=True)
            if position == last and column[0] in PROSE_TITLES
            else _column_width(column),
        )
        for position, column in enumerate(columns)
    )
    return sum(widths) + len(COLUMN_GAP) * last


def _min_table_width(columns: Sequence[Column], shortenable_columns: Sequence[str]) -> int:
    """Return the width of a table with all cells cut as far as possible."""
    last = len(columns) - 1
    widths = (
        _min_column_width(column, shortenable_columns, is_last=position == last)
        for position, column in enumerate(columns)
    )
    return sum(widths) + len(COLUMN_GAP) * last


def _min_column_width(column: Column, shortenable_columns: Sequence[str], *, is_last: bool) -> int:
    """Return the width to which a column may be cut. Only names and the last column may be cut."""
    title, width = column[0], _column_width(column)
    if any(_EXACT_TIME.match(cell) for cell in column[1]):
        return width  # The end of a time is its minutes.
    if title in shortenable_columns:
        return min(width, MIN_NAME_WIDTH)
    shortest = MIN_PROSE_WIDTH if title in PROSE_TITLES else MIN_COLUMN_WIDTH
    return min(width, max(_text_width(title), shortest)) if is_last else width


def _cut_end(text: str, width: int) -> str:
    plain = click.unstyle(text)
    return text if _text_width(plain) <= width else f"{_take_prefix(plain, width - 1)}…"


def _cut_middle(text: str, width: int) -> str:
    plain = click.unstyle(text)
    if _text_width(plain) <= width:
        return text
    text = plain
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
    value_column = len(indent) + width + len(COLUMN_GAP)
    begin = "\n" + " " * value_column
    if sys.stdout.isatty() and get_terminal_width() - value_column >= MIN_PROSE_WIDTH:
        pairs = [(name, wrap_words(value, get_terminal_width() - value_column)) for name, value in pairs]
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


WARNING_SHARE: Final = 0.7
CRITICAL_SHARE: Final = 0.9


def render_usage_bar(used: float, capacity: float, *, width: int = 20) -> str:
    """Return a bar that is filled by `used / capacity`: green below 70 %, yellow below 90 %, else red."""
    share = used / capacity if capacity > 0 else 0.0
    filled = min(width, round(width * share))
    colour = "green" if share < WARNING_SHARE else "yellow" if share < CRITICAL_SHARE else "red"
    return style("━" * filled, fg=colour) + style("─" * (width - filled), dim=True)


def wrap_for_terminal(text: str, stream: TextIO | None = None) -> str:
    """Return a text whose lines break between words at the width of the terminal; unchanged for other output."""
    stream = stream if stream is not None else sys.stdout
    if not stream.isatty():
        return text
    return wrap_words(text, get_terminal_width())


def wrap_words(text: str, width: int) -> str:
    """Return a text whose lines are at most `width` wide, broken between words. Words that are longer stay whole.

    Continued lines are indented like the line that they continue.
    """
    return "\n".join(wrapped for line in text.split("\n") for wrapped in _wrap_line(line, width))


def shorten_words(line: str, width: int) -> str:
    """Return a line in which words that are wider than `width` lose their middle, such as the path of a file."""
    return " ".join(
        _cut_middle(word, width) if _text_width(click.unstyle(word)) > width else word for word in line.split(" ")
    )


def _wrap_line(line: str, width: int) -> list[str]:
    if _text_width(click.unstyle(line)) <= width or line.startswith("  wharf "):
        return [line]  # A command stays whole, so that it can be copied.
    words = line.split(" ")
    indent = " " * (len(line) - len(line.lstrip(" ")))
    bullet = next((word for word in words if word), "")
    if click.unstyle(bullet) == "│":
        indent += f"{bullet} "  # A line of an output.
    elif click.unstyle(bullet) in ("·", "+", "-"):
        indent += "  "
    lines: list[str] = []
    current = words[0]
    for word in words[1:]:
        if current.strip() and _text_width(click.unstyle(f"{current} {word}")) > width:
            lines.append(current.rstrip())
            current = f"{indent}{word}"
        else:
            current += f" {word}"
    return [*lines, current.rstrip()]


def _format_row(cells: Sequence[str], widths: Sequence[int], is_number: Sequence[bool], indent: str) -> str:
    """Return the cells of one row, padded to the widths of their columns."""
    padded = []
    for cell, width, right in zip(cells, widths, is_number, strict=True):
        space = " " * (width - _text_width(click.unstyle(cell)))
        padded.append(space + cell if right else cell + space)
    return (indent + COLUMN_GAP.join(padded)).rstrip()


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(",", "").removesuffix("%").strip().isdigit()


ID_TITLES: Final = frozenset({"ID", "Accessor ID", "Node", "Allocation", "Evaluation", "Deployment"})
"""Titles of columns with ids and names, which are on the left also if all of them have only digits."""
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
