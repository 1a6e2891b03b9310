"""What validation found: problems and warnings, each with the path of its field, and how they are told.

A report is filled by the checks and read once, as `Findings`. Problems nest as the parts of a job do, because the text
that clients know does (jobs.md 6): a list of problems, some of which are lists of their own.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

PROBLEMS_MAX: Final = 200


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong, where, and (if it helps) how to mend it."""

    path: str
    message: str
    mend: str = ""

    def __str__(self) -> str:
        text = f"{self.message} ({self.path})" if self.path else self.message
        return f"{text}: {self.mend}" if self.mend else text


class Section(msgspec.Struct, frozen=True):
    """The problems of one part, under its name: `Task group web validation failed`."""

    title: str
    entries: tuple["Problem | Section", ...]

    def __str__(self) -> str:
        return f"{self.title}: {multi_error(self.entries)}"


Entry = Problem | Section


class Findings(msgspec.Struct, frozen=True):
    """All that validation found."""

    entries: tuple[Entry, ...] = ()
    warnings: tuple[Problem, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Nothing is wrong; there may be warnings."""
        return not self.entries

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Every problem, however deep."""
        return tuple(_flattened(self.entries))

    @property
    def text(self) -> str:
        """The problems as one text, empty if there are none."""
        return multi_error(self.entries) if self.entries else ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The outermost entries as texts."""
        return tuple(str(entry) for entry in self.entries)


def multi_error(entries: Sequence[Entry]) -> str:
    """`N errors occurred:`, a line for each, and two newlines after every list (jobs.md 6)."""
    count = "1 error" if len(entries) == 1 else f"{len(entries)} errors"
    return f"{count} occurred:\n\t" + "\n\t".join(f"* {entry}" for entry in entries) + "\n\n"


def warning_text(warnings: Sequence[object]) -> str:
    """Warnings as replies carry them: empty, or a count and one line each."""
    if not warnings:
        return ""
    count = "1 warning" if len(warnings) == 1 else f"{len(warnings)} warnings"
    return f"{count}:\n\n" + "\n".join(f"* {warning}" for warning in warnings)


def _flattened(entries: Sequence[Entry]) -> Iterator[Problem]:
    for entry in entries:
        if isinstance(entry, Section):
            yield from _flattened(entry.entries)
        else:
            yield entry


class Report:
    """Where the checks of one part write what they find. Parts of the part get a report of their own by `section`."""

    __slots__ = ("_entries", "_title", "_warnings")

    def __init__(self, title: str = "", warnings: list[Problem] | None = None) -> None:
        self._title = title
        self._entries: list[Problem | Report] = []
        self._warnings: list[Problem] = [] if warnings is None else warnings

    def error(self, path: str, message: str, mend: str = "") -> None:
        """Something is wrong."""
        # A job of a thousand broken tasks must not make a reply of megabytes.
        if len(self._entries) < PROBLEMS_MAX:
            self._entries.append(Problem(path, message, mend))

    def warn(self, path: str, message: str, mend: str = "") -> None:
        """Something is allowed, but hardly meant."""
        if len(self._warnings) < PROBLEMS_MAX:
            self._warnings.append(Problem(path, message, mend))

    def section(self, title: str) -> "Report":
        """A report for a part; it shows only if something is found in it."""
        inner = Report(title, self._warnings)
        self._entries.append(inner)
        return inner

    def findings(self) -> Findings:
        """All that was written."""
        return Findings(self._finished(), tuple(self._warnings))

    def _finished(self) -> tuple[Entry, ...]:
        entries: list[Entry] = []
        for entry in self._entries:
            if isinstance(entry, Problem):
                entries.append(entry)
            elif inner := entry._finished():
                entries.append(Section(entry._title, inner))
        return tuple(entries[:PROBLEMS_MAX])


def one_of(words: Sequence[str]) -> str:
    """How to mend a word that is not known."""
    return "use one of " + ", ".join(f'"{word}"' for word in words)
