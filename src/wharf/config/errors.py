"""The problems of a configuration: where each one is, which key it concerns, and what is expected instead."""

from collections.abc import Sequence
from typing import Final

import msgspec

MAX_REPORTED_PROBLEMS: Final = 20
"""Limit of the problems in the text of an error. A hint for each of thousands of keys would take minutes to compute."""


class ConfigurationProblem(msgspec.Struct, frozen=True):
    """One error in a configuration."""

    location: str
    """The file with its line, the variable or the flag; empty if the problem has no single location."""
    key: str
    """The full path of the key; empty if the problem concerns a whole file."""
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.location, self.key, self.message) if part)


class ConfigurationError(Exception):
    """The configuration cannot be used. `problems` lists everything that is wrong with it."""

    def __init__(self, problems: Sequence[ConfigurationProblem]) -> None:
        lines = [str(problem) for problem in problems[:MAX_REPORTED_PROBLEMS]]
        if len(problems) > MAX_REPORTED_PROBLEMS:
            lines.append(f"{len(problems) - MAX_REPORTED_PROBLEMS:,} more problems: is this a configuration of Wharf?")
        super().__init__("\n".join(lines))
        self.problems = tuple(problems)
