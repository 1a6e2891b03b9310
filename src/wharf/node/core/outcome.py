"""How a run of a task ended."""

import msgspec


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a run of a task ended.

    A program that was ended by signal N has exit code 128 + N, and `signal` is set too. A program that returned
    that code itself has signal 0. If no process saw the end, `is_known` is False and nothing is guessed.
    """

    exit_code: int = 0
    signal: int = 0
    is_known: bool = True
    is_out_of_memory: bool = False
    message: str = ""

    @property
    def is_success(self) -> bool:
        """Whether the program ended with exit code 0, without a signal or an error message."""
        return self.is_known and self.exit_code == 0 and self.signal == 0 and not self.message


UNKNOWN = Outcome(
    exit_code=-1, is_known=False, message="exit code unknown: the process that waited for the task was killed"
)
"""The outcome of a run whose end was not observed."""
