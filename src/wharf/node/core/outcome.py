"""How a run of a task ended."""

import msgspec


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a run, which is one start of a task.

    A program that signal N killed has exit code 128 + N, and `signal` is N. For a program that returned that code
    itself, `signal` is 0. If no process observed the end, `is_known` is False and the result counts as no success.
    """

    exit_code: int = 0
    signal: int = 0  # the number of the signal that killed it; 0: none
    is_known: bool = True
    is_out_of_memory: bool = False
    """Whether the kernel killed a process of the run because the run had reached its memory limit.

    The killed process may be a child of the program, whose exit code can then still be 0.
    """
    message: str = ""  # why the driver could not run the task to its end; empty: no error

    @property
    def is_success(self) -> bool:
        """Whether the program ended with exit code 0, and without a signal, an error message or a lack of memory."""
        return (
            self.is_known
            and self.exit_code == 0
            and self.signal == 0
            and not self.message
            and not self.is_out_of_memory
        )


UNKNOWN = Outcome(
    exit_code=-1, is_known=False, message="exit code unknown: the process that waited for the task was killed"
)
"""The outcome of a run whose end was not observed."""
