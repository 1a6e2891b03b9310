"""What validation found: problems and warnings, each with the path of its field, and how they are told.

A report is filled by the checks and read once, as `Findings`. Problems nest as the parts of a job do, because the text
that clients know does (jobs.md 6): a list of problems, some of which are lists of their own.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

MAX_PROBLEMS: Final = 200


class ValidationProblem(msgspec.Struct, frozen=True):
    """One thing that is wrong, where, and (if it helps) how to mend it."""

    path: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        text = f"{self.message} ({self.path})" if self.path else self.message
        return f"{text}: {self.fix}" if self.fix else text


class ProblemSection(msgspec.Struct, frozen=True):
    """The problems of one part, under its name: `Task group web validation failed`."""

    title: str
    entries: tuple["ValidationProblem | ProblemSection", ...]

    def __str__(self) -> str:
        return f"{self.title}: {format_problems(self.entries)}"


ReportEntry = ValidationProblem | ProblemSection


class Findings(msgspec.Struct, frozen=True):
    """All that validation found."""

    entries: tuple[ReportEntry, ...] = ()
    warnings: tuple[ValidationProblem, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Nothing is wrong; there may be warnings."""
        return not self.entries

    @property
    def problems(self) -> tuple[ValidationProblem, ...]:
        """Every problem, however deep."""
        return tuple(_flattened(self.entries))

    @property
    def text(self) -> str:
        """The problems as one text, empty if there are none."""
        return format_problems(self.entries) if self.entries else ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The outermost entries as texts."""
        return tuple(str(entry) for entry in self.entries)


def format_problems(entries: Sequence[ReportEntry]) -> str:
    """`N errors occurred:`, a line for each, and two newlines after every list (jobs.md 6)."""
    count = "1 error" if len(entries) == 1 else f"{len(entries)} errors"
    return f"{count} occurred:\n\t" + "\n\t".join(f"* {entry}" for entry in entries) + "\n\n"


def format_warnings(warnings: Sequence[object]) -> str:
    """Warnings as replies carry them: empty, or a count and one line each."""
    if not warnings:
        return ""
    count = "1 warning" if len(warnings) == 1 else f"{len(warnings)} warnings"
    return f"{count}:\n\n" + "\n".join(f"* {warning}" for warning in warnings)


def _flattened(entries: Sequence[ReportEntry]) -> Iterator[ValidationProblem]:
    for entry in entries:
        if isinstance(entry, ProblemSection):
            yield from _flattened(entry.entries)
        else:
            yield entry


class ValidationReport:
    """Where the checks of one part write what they find. Parts of the part get a report of their own by `section`."""

    __slots__ = ("_entries", "_title", "_warnings")

    def __init__(self, title: str = "", warnings: list[ValidationProblem] | None = None) -> None:
        self._title = title
        self._entries: list[ValidationProblem | ValidationReport] = []
        self._warnings: list[ValidationProblem] = [] if warnings is None else warnings

    def add_error(self, path: str, message: str, fix: str = "") -> None:
        """Something is wrong."""
        # A job of a thousand broken tasks must not make a reply of megabytes.
        if len(self._entries) < MAX_PROBLEMS:
            self._entries.append(ValidationProblem(path, message, fix))

    def add_warning(self, path: str, message: str, fix: str = "") -> None:
        """Something is allowed, but hardly meant."""
        if len(self._warnings) < MAX_PROBLEMS:
            self._warnings.append(ValidationProblem(path, message, fix))

    def add_section(self, title: str) -> "ValidationReport":
        """A report for a part; it shows only if something is found in it."""
        inner = ValidationReport(title, self._warnings)
        self._entries.append(inner)
        return inner

    def build_findings(self) -> Findings:
        """All that was written."""
        return Findings(self._finished(), tuple(self._warnings))

    def _finished(self) -> tuple[ReportEntry, ...]:
        entries: list[ReportEntry] = []
        for entry in self._entries:
            if isinstance(entry, ValidationProblem):
                entries.append(entry)
            elif inner := entry._finished():
                entries.append(ProblemSection(entry._title, inner))
        return tuple(entries[:MAX_PROBLEMS])


def suggest_one_of(words: Sequence[str]) -> str:
    """How to mend a word that is not known."""
    return "use one of " + ", ".join(f'"{word}"' for word in words)
