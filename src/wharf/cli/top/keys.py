"""Keys that a user presses in a live display. Reads a terminal byte by byte, without echo."""

import contextlib
import os
import re
import select
from collections import deque
from collections.abc import Iterator
from typing import Final, Protocol, TextIO


class Key:
    """Names of keys that are not letters."""

    UP: Final = "up"
    DOWN: Final = "down"
    ENTER: Final = "enter"
    TAB: Final = "tab"
    ESCAPE: Final = "escape"


NO_KEYS: Final = "no keys"
"""Read from a source that has no keys: standard input is not a terminal, or was closed."""
_KEY_BY_SEQUENCE: Final = {
    "\x1b[A": Key.UP, "\x1bOA": Key.UP, "k": Key.UP, "\x1b[B": Key.DOWN, "\x1bOB": Key.DOWN, "j": Key.DOWN,
    "\r": Key.ENTER, "\n": Key.ENTER, "\t": Key.TAB, "\x1b": Key.ESCAPE,
}  # fmt: skip
_SEQUENCE: Final = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
MAX_KEY_BYTES: Final = 32
"""Limit of one read. A terminal sends the bytes of a key together."""


class KeySource(Protocol):
    """Where keys come from."""

    def read_key(self, timeout_s: float) -> str:
        """Return the next key, an empty text after the timeout, or `NO_KEYS`."""
        ...


class NoKeys:
    """The source of a command whose standard input is not a terminal."""

    def read_key(self, timeout_s: float) -> str:  # noqa: ARG002
        """Return that no key can come."""
        return NO_KEYS


class TerminalKeys:
    """The keys of a terminal, which is in a mode that passes each key on at once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pressed: deque[str] = deque()
        """Keys that were read together with an earlier one."""

    def read_key(self, timeout_s: float) -> str:
        """Return the next key, an empty text after the timeout, or `NO_KEYS` after the end of the input."""
        if self._pressed:
            return self._pressed.popleft()
        readable, _, _ = select.select([self._descriptor], [], [], timeout_s)
        if not readable:
            return ""
        pressed = os.read(self._descriptor, MAX_KEY_BYTES)
        if not pressed:
            return NO_KEYS
        self._pressed.extend(parse_keys(pressed.decode(errors="replace")))
        return self._pressed.popleft() if self._pressed else ""


def parse_keys(text: str) -> list[str]:
    """Return the keys of what a terminal sent: names of `Key`, or letters. Unknown sequences are left out."""
    sequences = _SEQUENCE.findall(text)
    keys = [_KEY_BY_SEQUENCE.get(sequence, "" if len(sequence) > 1 else sequence) for sequence in sequences]
    return [key for key in keys if key]


@contextlib.contextmanager
def open_keys(stream: TextIO) -> Iterator[KeySource]:
    """Return the keys of a terminal, which gets its modes back afterwards; none if the stream is not a terminal."""
    if not stream.isatty():
        yield NoKeys()
        return
    import termios
    import tty

    descriptor = stream.fileno()
    modes = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield TerminalKeys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)
