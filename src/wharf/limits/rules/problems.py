"""What is wrong with a file that a person wrote: where exactly, which key, and how to mend it."""

from collections.abc import Sequence

import msgspec


class Place(msgspec.Struct, frozen=True, order=True):
    """Line and column, from 1."""

    line: int
    column: int


class Problem(msgspec.Struct, frozen=True, order=True):
    file: str
    place: Place
    key: str
    what: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.place.line}:{self.place.column}"
        return f"{where}: {self.key}: {self.what}" if self.key else f"{where}: {self.what}"


class FileRefused(Exception):
    """A file that cannot be used, with all that is wrong with it. What was in force stays in force."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(map(str, self.problems)))
