"""What can be wrong with a configuration, said so that it can be mended: where, which key, what is known or expected."""

from collections.abc import Sequence

import msgspec


class ConfigurationProblem(msgspec.Struct, frozen=True):
    location: str
    """The file with its line, the variable or the flag; empty when the whole is wrong and no place is."""
    key: str
    """The key with its path; empty when the file as a whole is wrong."""
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.location, self.key, self.message) if part)


class ConfigurationError(Exception):
    """A configuration that cannot be used, with all that is wrong with it."""

    def __init__(self, problems: Sequence[ConfigurationProblem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)
