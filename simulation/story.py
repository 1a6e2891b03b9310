"""What happened in a run, in order, for people: written down as it happens, shown when something went wrong."""

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from simulation.loop import SimulatedLoop
from simulation.process import current_process

KEPT: Final = 100_000
SHOWN: Final = 60


class Line(msgspec.Struct, frozen=True):
    at_s: float
    text: str
    about: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.at_s:10.4f}  {self.text}"


class Broken(AssertionError):
    """An invariant does not hold. `about` names the records, nodes, jobs or clients that it is about."""

    def __init__(self, text: str, *about: str) -> None:
        super().__init__(text)
        self.about = about


class Story:
    """Every line is mixed into the run's fingerprint."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.events = 0
        self._loop = loop
        self._lines: deque[Line] = deque(maxlen=KEPT)

    def event(self, text: str, *about: str) -> None:
        """Something of the cluster's life: these are counted."""
        self.events += 1
        self.note(text, *about)

    def note(self, text: str, *about: str) -> None:
        self._lines.append(Line(self._loop.time(), text, about))
        self._loop.note(text)

    @property
    def lines(self) -> Sequence[Line]:
        return tuple(self._lines)

    def of(self, about: Sequence[str]) -> list[Line]:
        """The last lines about these, and the last few of all."""
        wanted = frozenset(about)
        chosen = [line for line in self._lines if wanted.intersection(line.about)][-SHOWN:]
        last = list(self._lines)[-SHOWN // 2 :]
        return sorted({id(line): line for line in [*chosen, *last]}.values(), key=lambda line: line.at_s)


class LogLines(logging.Handler):
    """Takes what the product logs into the story, under the name of the process that said it."""

    def __init__(self, story: Story) -> None:
        super().__init__(logging.INFO)
        self._story = story

    def emit(self, record: logging.LogRecord) -> None:
        process = current_process()
        name = process.name if process is not None else "nobody"
        self._story.note(f"{name} says: {record.getMessage()}", name)
