"""What is wrong with a file that a person wrote: where exactly, which key, and how to mend it."""

from collections.abc import Sequence

import msgspec


class SourceLocation(msgspec.Struct, frozen=True, order=True):
    """Line and column, from 1."""

    line: int
    column: int


class FileProblem(msgspec.Struct, frozen=True, order=True):
    file: str
    location: SourceLocation
    key: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.location.line}:{self.location.column}"
        return f"{where}: {self.key}: {self.message}" if self.key else f"{where}: {self.message}"


class InvalidFile(Exception):
    """A file that cannot be used, with all that is wrong with it. What was in force stays in force."""

    def __init__(self, problems: Sequence[FileProblem]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(map(str, self.problems)))
