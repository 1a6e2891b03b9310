"""How a run of a task ended."""

import msgspec


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """A program that a signal ended has exit code 128 + that signal, and the signal beside it tells the two apart.

    What nobody saw is not guessed: then `is_known` is False.
    """

    exit_code: int = 0
    signal: int = 0
    is_known: bool = True
    is_out_of_memory: bool = False
    message: str = ""

    @property
    def is_success(self) -> bool:
        return self.is_known and self.exit_code == 0 and self.signal == 0 and not self.message


UNKNOWN = Outcome(exit_code=-1, is_known=False, message="exit code unknown: whoever waited for the task was killed")
