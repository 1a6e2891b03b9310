"""The problems of a configuration: where each one is, which key it concerns, and what is expected instead."""

from collections.abc import Sequence

import msgspec


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
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)
