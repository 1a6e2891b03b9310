"""The timeline of a run: its events as text, in order. It is printed when a seed fails."""

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
    """One entry of the timeline. `subjects` are the ids and names that it mentions."""

    at_s: float
    text: str
    subjects: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.at_s:10.4f}  {self.text}"


class InvariantViolation(AssertionError):
    """An invariant does not hold. `subjects` are the records, nodes, jobs or clients concerned."""

    def __init__(self, text: str, *subjects: str) -> None:
        super().__init__(text)
        self.subjects = subjects


class Timeline:
    """The newest entries of a run. The text of each entry is part of the fingerprint of the run."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.event_count = 0
        self._loop = loop
        self._entries: deque[TimelineEntry] = deque(maxlen=MAX_ENTRIES)

    def add_event(self, text: str, *subjects: str) -> None:
        """Add an event of the cluster. Events are counted."""
        self.event_count += 1
        self.add_note(text, *subjects)

    def add_note(self, text: str, *subjects: str) -> None:
        """Add an entry that does not count as an event."""
        self._entries.append(TimelineEntry(self._loop.time(), text, subjects))
        self._loop.add_to_fingerprint(text)

    @property
    def entries(self) -> Sequence[TimelineEntry]:
        return tuple(self._entries)

    def select_entries(self, subjects: Sequence[str]) -> list[TimelineEntry]:
        """Return the last entries that mention one of the subjects, and the last few entries of all."""
        subject_set = frozenset(subjects)
        chosen = [entry for entry in self._entries if subject_set.intersection(entry.subjects)][-MAX_SHOWN_ENTRIES:]
        last = list(self._entries)[-MAX_SHOWN_ENTRIES // 2 :]
        return sorted({id(entry): entry for entry in [*chosen, *last]}.values(), key=lambda entry: entry.at_s)


class TimelineLogHandler(logging.Handler):
    """Adds the log lines of the product to the timeline, with the name of their process."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__(logging.INFO)
        self._timeline = timeline

    def emit(self, record: logging.LogRecord) -> None:
        process = current_process()
        name = process.name if process is not None else "an unknown process"
        self._timeline.add_note(f"{name} logged: {record.getMessage()}", name)
