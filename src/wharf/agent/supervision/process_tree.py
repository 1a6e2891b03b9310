"""Which processes should run: events and the time go in, what to do comes out.

It keeps these rules and touches no process itself.

1. All parts are spawned at once, so that they load side by side; a part is let go when those it stands on are ready.
2. A part that ends is spawned again, alone, after a pause that grows with every end in a row and is forgotten once
   the part has run for a while.
3. Until everything was ready once, a part that says why it cannot start, or that ends too often, ends the agent: a
   person is looking and should be told. Later, nothing but a request to stop ends it.
4. Stopping goes against the order of starting: a part is asked to stop when nothing that stands on it lives any more.
   One that takes too long is killed. A second request to stop kills all at once; one that follows at once is the
   first again (a terminal and a program above us may both pass it on).
5. A part whose event loop gives no sign of life for its bound is killed, and then started again like one that ended.
   Until it is ready the bound is another, longer one: a large state takes its time. Whoever measures may have stood still
   itself, with the whole machine: when the bound is passed by more than a moment, all parts are given a new one.
"""

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

RESTART_PAUSES_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
RESET_FAILURES_AFTER_S: Final = 60.0
MAX_ENDS_BEFORE_READY: Final = 3
STOP_DEDUPLICATION_S: Final = 0.5
MAX_SILENCE_S: Final = 20.0
MAX_SILENCE_BEFORE_READY_S: Final = 600.0
STALL_THRESHOLD_S: Final = 2.0


class ProcessSpec(msgspec.Struct, frozen=True):
    """One process of the tree."""

    name: str
    dependencies: tuple[str, ...] = ()
    """Parts that must be ready before this one begins, and that outlive it."""
    grace_s: float = 3.0
    """How long it may take to stop."""
    max_silence_s: float = MAX_SILENCE_S
    """How long it may give no sign of life once it is ready."""


# What happened.


class PartReady(msgspec.Struct, frozen=True):
    part: str


class PartEnded(msgspec.Struct, frozen=True):
    part: str
    exit_text: str
    """For people: `exit code 1`, `killed by SIGSEGV`."""
    reason: str = ""
    """What the part itself said before; empty when it said nothing."""


class PartAlive(msgspec.Struct, frozen=True):
    """A sign of life."""

    part: str


class StopRequested(msgspec.Struct, frozen=True):
    pass


class TimerFired(msgspec.Struct, frozen=True):
    pass


Event = PartReady | PartEnded | PartAlive | StopRequested | TimerFired

# What to do.


class SpawnPart(msgspec.Struct, frozen=True):
    part: str


class BeginPart(msgspec.Struct, frozen=True):
    part: str


class StopPart(msgspec.Struct, frozen=True):
    part: str


class KillPart(msgspec.Struct, frozen=True):
    part: str


class AnnounceReady(msgspec.Struct, frozen=True):
    """Everything is ready, for the first time."""


class LogWarning(msgspec.Struct, frozen=True):
    text: str


class FinishTree(msgspec.Struct, frozen=True):
    """Nothing runs any more. `why` is empty after a request to stop."""

    reason: str = ""


Effect = SpawnPart | BeginPart | StopPart | KillPart | AnnounceReady | LogWarning | FinishTree


class PartPhase(enum.Enum):
    LOADING = enum.auto()  # Spawned, waiting for those it stands on.
    STARTING = enum.auto()  # Let go, not ready yet.
    READY = enum.auto()
    STOPPING = enum.auto()
    RESTING = enum.auto()  # Ended, to be spawned again.
    GONE = enum.auto()


_WATCHED: Final = (PartPhase.LOADING, PartPhase.STARTING, PartPhase.READY)
_LIVING: Final = (PartPhase.LOADING, PartPhase.STARTING, PartPhase.READY, PartPhase.STOPPING)


class PartState:
    """How one part stands."""

    def __init__(self) -> None:
        self.phase = PartPhase.GONE
        self.since_s = 0.0
        self.ends_in_a_row = 0
        self.deadline_s = 0.0
        """When the next step is due: spawn again while RESTING, kill while STOPPING or when it stays silent until then."""
        self.was_silent = False
        """It was killed for its silence."""


class ProcessTree:
    def __init__(self, parts: Sequence[ProcessSpec]) -> None:
        self._parts = {part.name: part for part in parts}
        self.part_states = {part.name: PartState() for part in parts}
        self._was_ready = False
        self._is_stopping = False
        self._asked_at_s: float | None = None
        self._finished = False
        self._why = ""

    def start(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for name in self._parts:
            effects += self._spawn(name, now_s)
        return effects + self._let_go(now_s)

    def handle_event(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case PartReady(part):
                return self._on_ready(part, now_s)
            case PartEnded():
                return self._on_end(event, now_s)
            case PartAlive(part):
                self._give_time(part, now_s)
                return []
            case StopRequested():
                return self._on_stop_asked(now_s)
            case TimerFired():
                return self._on_time(now_s)

    def next_deadline_s(self) -> float | None:
        """When TimerFired is needed at the latest."""
        return min((s.deadline_s for s in self.part_states.values() if s.phase is not PartPhase.GONE), default=None)

    def _on_stop_asked(self, now_s: float) -> list[Effect]:
        if self._asked_at_s is not None:
            return self._kill_all() if now_s - self._asked_at_s >= STOP_DEDUPLICATION_S else []
        self._asked_at_s = now_s
        return [] if self._is_stopping else self._stop(now_s)

    def _on_ready(self, name: str, now_s: float) -> list[Effect]:
        standing = self.part_states[name]
        if standing.phase is not PartPhase.STARTING:
            return []  # It was asked to stop meanwhile.
        self._enter(name, PartPhase.READY, now_s)
        effects = self._let_go(now_s)
        if not self._was_ready and all(s.phase is PartPhase.READY for s in self.part_states.values()):
            self._was_ready = True
            effects.append(AnnounceReady())
        return effects

    def _on_end(self, event: PartEnded, now_s: float) -> list[Effect]:
        standing = self.part_states[event.part]
        if self._is_stopping:
            self._enter(event.part, PartPhase.GONE, now_s)
            return self._stop_next(now_s)
        if standing.phase is PartPhase.READY and now_s - standing.since_s >= RESET_FAILURES_AFTER_S:
            standing.ends_in_a_row = 0
        standing.ends_in_a_row += 1
        if not self._was_ready and (event.reason or standing.ends_in_a_row >= MAX_ENDS_BEFORE_READY):
            self._why = (
                event.reason
                or f"{event.part} ended {standing.ends_in_a_row} times before it was ready ({event.exit_text})"
            )
            self._enter(event.part, PartPhase.GONE, now_s)
            return self._stop(now_s)
        how = (
            f"killed: no sign of life for {self._silence_s(event.part):g} s" if standing.was_silent else event.exit_text
        )
        pause_s = RESTART_PAUSES_S[min(standing.ends_in_a_row, len(RESTART_PAUSES_S)) - 1]
        self._enter(event.part, PartPhase.RESTING, now_s)
        standing.deadline_s = now_s + pause_s
        said = f": {event.reason}" if event.reason else ""
        return [LogWarning(f"{event.part} ended ({how}){said}; it starts again in {pause_s:g} s")]

    def _on_time(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        if any(s.deadline_s + STALL_THRESHOLD_S < now_s for s in self.part_states.values() if s.phase in _WATCHED):
            for name in self._parts:
                self._give_time(name, now_s)
        for name, standing in self.part_states.items():
            if standing.deadline_s > now_s:
                continue
            if standing.phase in _WATCHED:
                standing.was_silent = True
                standing.deadline_s = (
                    now_s + self._parts[name].max_silence_s
                )  # Killed again, should that be possible at all.
                effects.append(KillPart(name))
            elif standing.phase is PartPhase.RESTING:
                effects += self._spawn(name, now_s)
            elif standing.phase is PartPhase.STOPPING:
                standing.deadline_s = now_s + self._parts[name].grace_s  # Killed again, should that be possible at all.
                effects += [LogWarning(f"{name} did not stop in time and is killed"), KillPart(name)]
        return effects + self._let_go(now_s)

    def _spawn(self, name: str, now_s: float) -> list[Effect]:
        self._enter(name, PartPhase.LOADING, now_s)
        return [SpawnPart(name)]

    def _let_go(self, now_s: float) -> list[Effect]:
        """Those that wait for nobody any more."""
        effects: list[Effect] = []
        for name, part in self._parts.items():
            is_free = all(self.part_states[other].phase is PartPhase.READY for other in part.dependencies)
            if self.part_states[name].phase is PartPhase.LOADING and is_free:
                self._enter(name, PartPhase.STARTING, now_s)
                effects.append(BeginPart(name))
        return effects

    def _stop(self, now_s: float) -> list[Effect]:
        self._is_stopping = True
        for name, standing in self.part_states.items():
            if standing.phase is PartPhase.RESTING:
                self._enter(name, PartPhase.GONE, now_s)
        return self._stop_next(now_s)

    def _stop_next(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for name, part in self._parts.items():
            standing = self.part_states[name]
            if standing.phase not in _LIVING or standing.phase is PartPhase.STOPPING:
                continue
            if not any(name in other.dependencies and self._lives(other.name) for other in self._parts.values()):
                self._enter(name, PartPhase.STOPPING, now_s)
                standing.deadline_s = now_s + part.grace_s
                effects.append(StopPart(name))
        if not self._finished and not any(self._lives(name) for name in self._parts):
            self._finished = True
            effects.append(FinishTree(self._why))
        return effects

    def _kill_all(self) -> list[Effect]:
        return [KillPart(name) for name in self._parts if self._lives(name)]

    def _lives(self, name: str) -> bool:
        return self.part_states[name].phase in _LIVING

    def _enter(self, name: str, phase: PartPhase, now_s: float) -> None:
        standing = self.part_states[name]
        standing.phase = phase
        standing.since_s = now_s
        if phase is PartPhase.LOADING:
            standing.was_silent = False
        self._give_time(name, now_s)

    def _give_time(self, name: str, now_s: float) -> None:
        """Its silence is counted from now on."""
        standing = self.part_states[name]
        if standing.phase in _WATCHED and not standing.was_silent:
            standing.deadline_s = now_s + self._silence_s(name)

    def _silence_s(self, name: str) -> float:
        is_ready = self.part_states[name].phase is PartPhase.READY
        return self._parts[name].max_silence_s if is_ready else MAX_SILENCE_BEFORE_READY_S
