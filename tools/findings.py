"""A finding of a check: the file and line, the broken rule, and what to write instead."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A violation of a rule at one line of a file, and what to write instead."""

    path: str  # Of the file, from the project's root, with forward slashes.
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message} [{self.rule}]"
