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

PAUSES_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
FORGIVEN_AFTER_S: Final = 60.0
ENDS_BEFORE_GIVING_UP: Final = 3
SAME_REQUEST_S: Final = 0.5
SILENCE_S: Final = 20.0
SILENCE_BEFORE_READY_S: Final = 600.0
STOOD_STILL_S: Final = 2.0


class Part(msgspec.Struct, frozen=True):
    """One process of the tree."""

    name: str
    after: tuple[str, ...] = ()
    """Parts that must be ready before this one begins, and that outlive it."""
    grace_s: float = 3.0
    """How long it may take to stop."""
    silence_s: float = SILENCE_S
    """How long it may give no sign of life once it is ready."""


# What happened.


class Readied(msgspec.Struct, frozen=True):
    part: str


class Ended(msgspec.Struct, frozen=True):
    part: str
    how: str
    """For people: `exit code 1`, `killed by SIGSEGV`."""
    why: str = ""
    """What the part itself said before; empty when it said nothing."""


class Lived(msgspec.Struct, frozen=True):
    """A sign of life."""

    part: str


class StopAsked(msgspec.Struct, frozen=True):
    pass


class TimePassed(msgspec.Struct, frozen=True):
    pass


Event = Readied | Ended | Lived | StopAsked | TimePassed

# What to do.


class Spawn(msgspec.Struct, frozen=True):
    part: str


class LetGo(msgspec.Struct, frozen=True):
    part: str


class AskToStop(msgspec.Struct, frozen=True):
    part: str


class Kill(msgspec.Struct, frozen=True):
    part: str


class AnnounceReady(msgspec.Struct, frozen=True):
    """Everything is ready, for the first time."""


class Warn(msgspec.Struct, frozen=True):
    text: str


class Finish(msgspec.Struct, frozen=True):
    """Nothing runs any more. `why` is empty after a request to stop."""

    why: str = ""


Effect = Spawn | LetGo | AskToStop | Kill | AnnounceReady | Warn | Finish


class Phase(enum.Enum):
    LOADING = enum.auto()  # Spawned, waiting for those it stands on.
    STARTING = enum.auto()  # Let go, not ready yet.
    READY = enum.auto()
    STOPPING = enum.auto()
    RESTING = enum.auto()  # Ended, to be spawned again.
    GONE = enum.auto()


_WATCHED: Final = (Phase.LOADING, Phase.STARTING, Phase.READY)
_LIVING: Final = (Phase.LOADING, Phase.STARTING, Phase.READY, Phase.STOPPING)


class Standing:
    """How one part stands."""

    def __init__(self) -> None:
        self.phase = Phase.GONE
        self.since_s = 0.0
        self.ends_in_a_row = 0
        self.due_s = 0.0
        """When the next step is due: spawn again while RESTING, kill while STOPPING or when it stays silent until then."""
        self.was_silent = False
        """It was killed for its silence."""


class ProcessTree:
    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = {part.name: part for part in parts}
        self.standings = {part.name: Standing() for part in parts}
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

    def on(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case Readied(part):
                return self._on_ready(part, now_s)
            case Ended():
                return self._on_end(event, now_s)
            case Lived(part):
                self._give_time(part, now_s)
                return []
            case StopAsked():
                return self._on_stop_asked(now_s)
            case TimePassed():
                return self._on_time(now_s)

    def next_due_s(self) -> float | None:
        """When TimePassed is needed at the latest."""
        return min((s.due_s for s in self.standings.values() if s.phase is not Phase.GONE), default=None)

    def _on_stop_asked(self, now_s: float) -> list[Effect]:
        if self._asked_at_s is not None:
            return self._kill_all() if now_s - self._asked_at_s >= SAME_REQUEST_S else []
        self._asked_at_s = now_s
        return [] if self._is_stopping else self._stop(now_s)

    def _on_ready(self, name: str, now_s: float) -> list[Effect]:
        standing = self.standings[name]
        if standing.phase is not Phase.STARTING:
            return []  # It was asked to stop meanwhile.
        self._enter(name, Phase.READY, now_s)
        effects = self._let_go(now_s)
        if not self._was_ready and all(s.phase is Phase.READY for s in self.standings.values()):
            self._was_ready = True
            effects.append(AnnounceReady())
        return effects

    def _on_end(self, event: Ended, now_s: float) -> list[Effect]:
        standing = self.standings[event.part]
        if self._is_stopping:
            self._enter(event.part, Phase.GONE, now_s)
            return self._stop_next(now_s)
        if standing.phase is Phase.READY and now_s - standing.since_s >= FORGIVEN_AFTER_S:
            standing.ends_in_a_row = 0
        standing.ends_in_a_row += 1
        if not self._was_ready and (event.why or standing.ends_in_a_row >= ENDS_BEFORE_GIVING_UP):
            self._why = (
                event.why or f"{event.part} ended {standing.ends_in_a_row} times before it was ready ({event.how})"
            )
            self._enter(event.part, Phase.GONE, now_s)
            return self._stop(now_s)
        how = f"killed: no sign of life for {self._silence_s(event.part):g} s" if standing.was_silent else event.how
        pause_s = PAUSES_S[min(standing.ends_in_a_row, len(PAUSES_S)) - 1]
        self._enter(event.part, Phase.RESTING, now_s)
        standing.due_s = now_s + pause_s
        said = f": {event.why}" if event.why else ""
        return [Warn(f"{event.part} ended ({how}){said}; it starts again in {pause_s:g} s")]

    def _on_time(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        if any(s.due_s + STOOD_STILL_S < now_s for s in self.standings.values() if s.phase in _WATCHED):
            for name in self._parts:
                self._give_time(name, now_s)
        for name, standing in self.standings.items():
            if standing.due_s > now_s:
                continue
            if standing.phase in _WATCHED:
                standing.was_silent = True
                standing.due_s = now_s + self._parts[name].silence_s  # Killed again, should that be possible at all.
                effects.append(Kill(name))
            elif standing.phase is Phase.RESTING:
                effects += self._spawn(name, now_s)
            elif standing.phase is Phase.STOPPING:
                standing.due_s = now_s + self._parts[name].grace_s  # Killed again, should that be possible at all.
                effects += [Warn(f"{name} did not stop in time and is killed"), Kill(name)]
        return effects + self._let_go(now_s)

    def _spawn(self, name: str, now_s: float) -> list[Effect]:
        self._enter(name, Phase.LOADING, now_s)
        return [Spawn(name)]

    def _let_go(self, now_s: float) -> list[Effect]:
        """Those that wait for nobody any more."""
        effects: list[Effect] = []
        for name, part in self._parts.items():
            is_free = all(self.standings[other].phase is Phase.READY for other in part.after)
            if self.standings[name].phase is Phase.LOADING and is_free:
                self._enter(name, Phase.STARTING, now_s)
                effects.append(LetGo(name))
        return effects

    def _stop(self, now_s: float) -> list[Effect]:
        self._is_stopping = True
        for name, standing in self.standings.items():
            if standing.phase is Phase.RESTING:
                self._enter(name, Phase.GONE, now_s)
        return self._stop_next(now_s)

    def _stop_next(self, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for name, part in self._parts.items():
            standing = self.standings[name]
            if standing.phase not in _LIVING or standing.phase is Phase.STOPPING:
                continue
            if not any(name in other.after and self._lives(other.name) for other in self._parts.values()):
                self._enter(name, Phase.STOPPING, now_s)
                standing.due_s = now_s + part.grace_s
                effects.append(AskToStop(name))
        if not self._finished and not any(self._lives(name) for name in self._parts):
            self._finished = True
            effects.append(Finish(self._why))
        return effects

    def _kill_all(self) -> list[Effect]:
        return [Kill(name) for name in self._parts if self._lives(name)]

    def _lives(self, name: str) -> bool:
        return self.standings[name].phase in _LIVING

    def _enter(self, name: str, phase: Phase, now_s: float) -> None:
        standing = self.standings[name]
        standing.phase = phase
        standing.since_s = now_s
        if phase is Phase.LOADING:
            standing.was_silent = False
        self._give_time(name, now_s)

    def _give_time(self, name: str, now_s: float) -> None:
        """Its silence is counted from now on."""
        standing = self.standings[name]
        if standing.phase in _WATCHED and not standing.was_silent:
            standing.due_s = now_s + self._silence_s(name)

    def _silence_s(self, name: str) -> float:
        is_ready = self.standings[name].phase is Phase.READY
        return self._parts[name].silence_s if is_ready else SILENCE_BEFORE_READY_S
