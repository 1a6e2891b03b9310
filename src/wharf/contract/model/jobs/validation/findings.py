"""The findings of a validation: problems and warnings, each with the path of its field, and their texts.

The checks fill a `ValidationReport`, which is then turned into `Findings`. Problems are nested like the parts of a job, because
clients know the nested text (jobs.md 6): a list of problems, some of which are lists themselves.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from wharf.contract.model.body_limits import MAX_REPORTED_PROBLEMS
from wharf.contract.model.message_texts import MAX_SCANNED_MESSAGE_CHARS, cut_message
from wharf.languages.suggestions import find_nearest_name

MAX_WARNINGS: Final = 200
"""Warnings reported for a job; limits the size of a reply. Problems have the limit of all bodies."""


class ValidationProblem(msgspec.Struct, frozen=True):
    """A problem or a warning about one field of a job."""

    path: str  # The field, such as `TaskGroups[0].Count`.
    message: str
    fix: str = ""  # How to fix it; empty if the message suffices.

    def __str__(self) -> str:
        text = f"{self.message} ({self.path})" if self.path else self.message
        return f"{text}: {self.fix}" if self.fix else text


class ProblemSection(msgspec.Struct, frozen=True):
    """The problems of one part of a job, under a title such as `Task group web validation failed`.

    Sections can be nested.
    """

    title: str
    entries: tuple["ValidationProblem | ProblemSection", ...]

    def __str__(self) -> str:
        return f"{self.title}: {format_problems(self.entries)}"


ReportEntry = ValidationProblem | ProblemSection


class Findings(msgspec.Struct, frozen=True):
    """The result of a validation: problems, nested like the parts of the job, and warnings."""

    entries: tuple[ReportEntry, ...] = ()
    warnings: tuple[ValidationProblem, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Whether there are no problems; there may be warnings."""
        return not self.entries

    @property
    def problems(self) -> tuple[ValidationProblem, ...]:
        """All problems, without the nesting."""
        return tuple(_iter_problems(self.entries))

    @property
    def text(self) -> str:
        """All problems as one text with an indented list; empty if there are no problems."""
        return format_problems(self.entries) if self.entries else ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The outermost problems and sections, each as a text."""
        return tuple(str(entry) for entry in self.entries)


def format_problems(entries: Sequence[ReportEntry]) -> str:
    """Return problems as text: `N errors occurred:`, then a line for each, then two newlines.

    Clients know this format (jobs.md 6). Problems beyond `MAX_REPORTED_PROBLEMS` are dropped.
    """
    entries = entries[:MAX_REPORTED_PROBLEMS]
    count = "1 error" if len(entries) == 1 else f"{len(entries)} errors"
    return f"{count} occurred:\n\t" + "\n\t".join(f"* {entry}" for entry in entries) + "\n\n"


def format_warnings(warnings: Sequence[object]) -> str:
    """Return warnings as text for a reply: their number, then a line for each; empty if there are none."""
    if not warnings:
        return ""
    count = "1 warning" if len(warnings) == 1 else f"{len(warnings)} warnings"
    return f"{count}:\n\n" + "\n".join(f"* {warning}" for warning in warnings)


def _iter_problems(entries: Sequence[ReportEntry]) -> Iterator[ValidationProblem]:
    """Yield all problems, including those inside sections."""
    for entry in entries:
        if isinstance(entry, ProblemSection):
            yield from _iter_problems(entry.entries)
        else:
            yield entry


class ValidationReport:
    """Collects the problems and warnings of one part of a job.

    Parts inside it have reports of their own. Warnings and the limit of problems are shared.
    """

    __slots__ = ("_entries", "_problem_count", "_root", "_title", "_warnings")

    def __init__(self, title: str = "", root: "ValidationReport | None" = None) -> None:
        """`root`: the report of the whole job, if this is the report of a part."""
        self._title = title
        self._root = self if root is None else root
        self._problem_count = 0
        self._entries: list[ValidationProblem | ValidationReport] = []
        self._warnings: list[ValidationProblem] = [] if root is None else root._warnings

    @property
    def is_full(self) -> bool:
        """Whether further problems are dropped."""
        return self._root._problem_count >= MAX_REPORTED_PROBLEMS

    def add_error(self, path: str, message: str, fix: str = "") -> None:
        """Add a problem of the field at `path`. `fix` describes how to fix it.

        Problems of the whole job beyond `MAX_REPORTED_PROBLEMS` are dropped.
        """
        # A job with a thousand invalid tasks must not cause a reply of several megabytes.
        root = self._root
        if root._problem_count < MAX_REPORTED_PROBLEMS:
            root._problem_count += 1
            self._entries.append(_build_problem(path, message, fix))

    def add_warning(self, path: str, message: str, fix: str = "") -> None:
        """Add a warning about a value that is allowed but probably a mistake.

        Warnings beyond `MAX_WARNINGS` are dropped.
        """
        if len(self._warnings) < MAX_WARNINGS:
            self._warnings.append(_build_problem(path, message, fix))

    def add_section(self, title: str) -> "ValidationReport":
        """Add and return a report for a part inside this one. The part appears only if a problem is found in it."""
        section = ValidationReport(title, self._root)
        self._entries.append(section)
        return section

    def build_findings(self) -> Findings:
        """Return all problems and warnings that were added so far."""
        return Findings(self._build_entries(), tuple(self._warnings))

    def _build_entries(self) -> tuple[ReportEntry, ...]:
        """Return the problems and the sections that contain problems."""
        entries: list[ReportEntry] = []
        for entry in self._entries:
            if isinstance(entry, ValidationProblem):
                entries.append(entry)
            elif section := entry._build_entries():
                entries.append(ProblemSection(entry._title, section))
        return tuple(entries)


def _build_problem(path: str, message: str, fix: str) -> ValidationProblem:
    """Return a problem whose message repeats little input: a job may hold megabytes of it."""
    return ValidationProblem(path, cut_message(message, max_scanned_chars=MAX_SCANNED_MESSAGE_CHARS), fix)


def suggest_one_of(words: Sequence[str], found: str = "") -> str:
    """Return the suggestion to use one of these words, such as `use one of "a", "b"`, or the one that `found` is similar to."""
    nearest = find_nearest_name(found, words) if found else None
    if nearest is not None:
        return f'did you mean "{nearest}"?'
    return "use one of " + ", ".join(f'"{word}"' for word in words)
