"""What happened in a run, in order, for people: written down as it happens, shown when something went wrong."""

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from simulation.loop import SimulatedLoop
from simulation.process import current_process

MAX_ENTRIES: Final = 100_000
MAX_SHOWN_ENTRIES: Final = 60


class TimelineEntry(msgspec.Struct, frozen=True):
    at_s: float
    text: str
    about: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.at_s:10.4f}  {self.text}"


class InvariantViolation(AssertionError):
    """An invariant does not hold. `about` names the records, nodes, jobs or clients that it is about."""

    def __init__(self, text: str, *about: str) -> None:
        super().__init__(text)
        self.about = about


class Timeline:
    """Every line is mixed into the run's fingerprint."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.event_count = 0
        self._loop = loop
        self._lines: deque[TimelineEntry] = deque(maxlen=MAX_ENTRIES)

    def add_event(self, text: str, *about: str) -> None:
        """Something of the cluster's life: these are counted."""
        self.event_count += 1
        self.add_note(text, *about)

    def add_note(self, text: str, *about: str) -> None:
        self._lines.append(TimelineEntry(self._loop.time(), text, about))
        self._loop.add_to_fingerprint(text)

    @property
    def entries(self) -> Sequence[TimelineEntry]:
        return tuple(self._lines)

    def select_entries(self, about: Sequence[str]) -> list[TimelineEntry]:
        """The last lines about these, and the last few of all."""
        wanted = frozenset(about)
        chosen = [line for line in self._lines if wanted.intersection(line.about)][-MAX_SHOWN_ENTRIES:]
        last = list(self._lines)[-MAX_SHOWN_ENTRIES // 2 :]
        return sorted({id(line): line for line in [*chosen, *last]}.values(), key=lambda line: line.at_s)


class TimelineLogHandler(logging.Handler):
    """Takes what the product logs into the story, under the name of the process that said it."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__(logging.INFO)
        self._story = timeline

    def emit(self, record: logging.LogRecord) -> None:
        process = current_process()
        name = process.name if process is not None else "nobody"
        self._story.add_note(f"{name} says: {record.getMessage()}", name)
