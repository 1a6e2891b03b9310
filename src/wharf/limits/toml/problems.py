"""Problems of a file that a user wrote: the location, the key, and how to fix it."""

from collections.abc import Sequence

import msgspec

from wharf.languages.source_locations import SourceLocation


class FileProblem(msgspec.Struct, frozen=True, order=True):
    """One problem of a file."""

    file: str
    location: SourceLocation
    key: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.location.line}:{self.location.column}"
        return f"{where}: {self.key}: {self.message}" if self.key else f"{where}: {self.message}"


class InvalidFile(Exception):
    """A file that cannot be used, with all its problems. The previous version stays in use."""

    def __init__(self, problems: Sequence[FileProblem]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(map(str, self.problems)))
