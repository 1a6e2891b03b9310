"""Text in columns: aligned, one record a line, coloured by what a word means where the output is a terminal.

Columns are as wide as what stands in them; the last is cut to the terminal, and nothing else ever is.
"""

import shutil
from collections.abc import Iterable, Sequence
from typing import Final

import click

GAP: Final = "  "
GOOD: Final = frozenset({"running", "ready", "eligible", "successful", "complete", "alive", "healthy", "active"})
BAD: Final = frozenset({"failed", "lost", "down", "dead (failed)", "unhealthy"})
WAITING: Final = frozenset({
    "pending", "blocked", "paused", "draining", "ineligible", "initializing", "unknown", "starting", "disconnected",
})  # fmt: skip


def coloured(word: str) -> str:
    """A status in its colour; click leaves colours out where the output is no terminal."""
    first = word.strip()
    if first in GOOD:
        return click.style(word, fg="green")
    if first in BAD:
        return click.style(word, fg="red")
    if first in WAITING:
        return click.style(word, fg="yellow")
    return word


def heading(text: str) -> str:
    return click.style(text, bold=True)


def dim(text: str) -> str:
    return click.style(text, dim=True)


def width_of_terminal() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, indent: str = "") -> str:
    """`titles` above the rows. Numbers stand to the right. Without rows it is the titles alone."""
    texts = [[str(cell) for cell in row] for row in rows]
    is_number = [
        bool(texts) and all(_is_number(row[at]) for row in texts) and any(row[at] != "-" for row in texts)
        for at in range(len(titles))
    ]
    widths = [max(len(click.unstyle(text)) for text in column) for column in zip(titles, *texts, strict=True)]
    lines = [heading(_line(titles, widths, is_number, indent))]
    lines += [_line([coloured(cell) for cell in row], widths, is_number, indent) for row in texts]
    return "\n".join(lines)


def pairs(entries: Iterable[tuple[str, object]], *, indent: str = "") -> str:
    """Names and values, one a line. What is empty is left out."""
    kept = [(name, str(value)) for name, value in entries if value not in ("", None)]
    width = max((len(name) for name, _ in kept), default=0)
    return "\n".join(f"{indent}{dim(f'{name:<{width}}')}{GAP}{coloured(value)}" for name, value in kept)


def section(title: str, body: str) -> str:
    """An empty line, a heading, and what stands beneath."""
    return f"\n{heading(title)}\n{body}"


def bar(done: int, total: int, *, width: int = 20) -> str:
    """How much of a total is done, as a line that fills."""
    filled = 0 if total <= 0 else min(width, round(width * done / total))
    return click.style("━" * filled, fg="green") + click.style("─" * (width - filled), dim=True)


def _line(cells: Sequence[str], widths: Sequence[int], is_number: Sequence[bool], indent: str) -> str:
    padded = []
    for cell, width, right in zip(cells, widths, is_number, strict=True):
        space = " " * (width - len(click.unstyle(cell)))
        padded.append(space + cell if right else cell + space)
    return (indent + GAP.join(padded)).rstrip()


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(",", "").removesuffix("%").isdigit()
