"""Problems of a file that a user wrote: the location, the key, and how to fix it."""

from collections.abc import Sequence

import msgspec

from wharf.languages.source_locations import SourceLocation


class FileProblem(msgspec.Struct, frozen=True, order=True):
    """One problem of a TOML file."""

    file: str
    location: SourceLocation
    """Line and column."""
    key: str
    """The key, such as `rule[2].ceiling`; empty if the problem concerns the whole file."""
    message: str

    def __str__(self) -> str:
        position = f"{self.file}:{self.location.line}:{self.location.column}"
        return f"{position}: {self.key}: {self.message}" if self.key else f"{position}: {self.message}"


class InvalidFile(Exception):
    """A file that cannot be used, with all its problems. The previous version stays in use."""

    def __init__(self, problems: Sequence[FileProblem]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(map(str, self.problems)))
