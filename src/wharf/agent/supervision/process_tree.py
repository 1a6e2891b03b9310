"""Decides which processes should run: it turns events and the time into effects, and touches no process itself.

A part is one process of the tree. The rules are:

1. All parts are spawned at once, so that they load in parallel. A part begins its work when its dependencies are ready.
2. A part that ends is spawned again after a pause. The pause grows with each end in a row, and is reset once the part has
   run for `RESET_FAILURES_AFTER_S`.
3. Until all parts have been ready once, the agent ends if a part reports that it cannot start or ends too often: an
   operator is watching the start. Later, only a request to stop ends the agent.
4. Parts stop in reverse order of dependency: a part is asked to stop when no living part depends on it. A part that takes
   too long is killed. A second request to stop kills all parts, unless it follows within `STOP_DEDUPLICATION_S`: a
   terminal and a parent program may both forward the same request.
5. A part whose event loop sends no sign of life for too long is killed and spawned again. After `EXAMINE_AFTER_S` the tree
   requests an examination of the process every `EXAMINATION_INTERVAL_S`. A process that is busy may be silent for longer
   than one that hangs. Until the part is ready the limits are longer, because loading a large state takes time.
6. If the tree is called more than `STALL_THRESHOLD_S` after a deadline, the parent or the whole machine did not run
   meanwhile. This time does not count as silence of any part.
"""

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.agent.supervision.activity import Activity, SilenceLimits, find_exceeded_limit

RESTART_PAUSES_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses before a part is spawned again, by the number of ends in a row. They protect the CPU from a restart loop."""
RESTART_PAUSES_AFTER_KILL_S: Final = (0.1, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""The same if the agent was ready once and the part gave no reason, for example because it was killed: another start
probably succeeds."""
RESET_FAILURES_AFTER_S: Final = 60.0
"""A part that was ready for this long starts again with the first pause."""
MAX_ENDS_BEFORE_READY: Final = 3
"""The agent ends if a part ends this often before all parts were ready."""
STOP_DEDUPLICATION_S: Final = 0.5
"""A second request to stop within this time counts as the first one repeated."""
EXAMINE_AFTER_S: Final = 2.5
"""After this time without a sign of life, a part is examined. A healthy part sends one every second."""
EXAMINATION_INTERVAL_S: Final = 0.5
"""How often a silent part is examined."""
MAX_SILENCE_BEFORE_READY_S: Final = 600.0
"""How long a part that is not ready yet may be silent while it is busy, or while its activity is unknown."""
MAX_IDLE_BEFORE_READY_S: Final = 60.0
"""How long a part that is not ready yet may be silent while it sleeps."""
STALL_THRESHOLD_S: Final = 2.0
"""If a deadline is noticed this late, the parent or the machine has stalled."""


class ProcessSpec(msgspec.Struct, frozen=True):
    """One process of the agent: what it depends on, and how long it may take."""

    name: str
    dependencies: tuple[str, ...] = ()
    """Parts that must be ready before this one begins, and that stop after it."""
    grace_s: float = 3.0
    """How long the part may take to stop before it is killed."""
    max_restart_pause_s: float = RESTART_PAUSES_S[-1]
    """The longest pause before the part is spawned again."""
    silence_limits: SilenceLimits = SilenceLimits()
    """How long the part may send no sign of life once it is ready."""


# Events.


class PartReady(msgspec.Struct, frozen=True):
    """An event: a part, which is one process of the agent, reported that it is ready."""

    part: str


class PartEnded(msgspec.Struct, frozen=True):
    """An event: the process of a part ended."""

    part: str
    exit_text: str
    """How it ended, for the operator: `exit code 1`, `killed by SIGSEGV`."""
    reason: str = ""
    """The reason that the part reported before it ended, or empty."""


class PartAlive(msgspec.Struct, frozen=True):
    """An event: a part sent a sign of life."""

    part: str


class PartExamined(msgspec.Struct, frozen=True):
    """An event: the process of a silent part was examined, because of `ExaminePart`."""

    part: str
    activity: Activity
    """What the process did since its previous examination."""


class StopRequested(msgspec.Struct, frozen=True):
    """An event: an operator or a parent program asked the agent to stop."""


class TimerFired(msgspec.Struct, frozen=True):
    """An event: a deadline may have passed (`ProcessTree.next_deadline_s`)."""


Event = PartReady | PartEnded | PartAlive | PartExamined | StopRequested | TimerFired

# Effects.


class SpawnPart(msgspec.Struct, frozen=True):
    """An effect: start the process of this part. It loads, but does not begin its work."""

    part: str


class BeginPart(msgspec.Struct, frozen=True):
    """An effect: let the part begin its work."""

    part: str


class StopPart(msgspec.Struct, frozen=True):
    """An effect: ask the part to stop."""

    part: str


class ExaminePart(msgspec.Struct, frozen=True):
    """An effect: find out whether the process of this silent part is busy, and report it as `PartExamined`."""

    part: str


class KillPart(msgspec.Struct, frozen=True):
    """An effect: kill the process of this part."""

    part: str


class AnnounceReady(msgspec.Struct, frozen=True):
    """An effect: report to the operator that all parts are ready, which happens once."""


class LogPartEnded(msgspec.Struct, frozen=True):
    """An effect: log that a part ended, why, and that it will be started again after this delay."""

    part: str
    cause: str
    restart_delay_s: float


class LogPartKilled(msgspec.Struct, frozen=True):
    """An effect: log that a part is killed because it did not stop in time."""

    part: str


class FinishTree(msgspec.Struct, frozen=True):
    """An effect: end the agent, because all parts have ended. `reason` is empty after a request to stop."""

    reason: str = ""


Effect = (
    SpawnPart
    | BeginPart
    | StopPart
    | ExaminePart
    | KillPart
    | AnnounceReady
    | LogPartEnded
    | LogPartKilled
    | FinishTree
)


class PartPhase(enum.Enum):
    """The phases of a part, which is one process of the agent."""

    LOADING = enum.auto()  # Spawned; waits for its dependencies.
    STARTING = enum.auto()  # Asked to begin; not ready yet.
    READY = enum.auto()
    STOPPING = enum.auto()
    RESTING = enum.auto()  # Ended; spawned again after a pause.
    GONE = enum.auto()


# The phases in which a part is killed if it sends no sign of life.
_PHASES_WITH_SILENCE_LIMIT: Final = (PartPhase.LOADING, PartPhase.STARTING, PartPhase.READY)
# The phases in which a part has a process.
_PHASES_WITH_PROCESS: Final = (PartPhase.LOADING, PartPhase.STARTING, PartPhase.READY, PartPhase.STOPPING)


class PartState:
    """The state of one part."""

    def __init__(self) -> None:
        self.phase = PartPhase.GONE
        self.since_s = 0.0
        self.ends_in_a_row = 0
        self.deadline_s = 0.0
        """When the next step is due. RESTING: spawn the part again. STOPPING: kill it. Otherwise: examine it unless it sends a
        sign of life before."""
        self.alive_at_s = 0.0
        """When it sent its last sign of life."""
        self.active_at_s = 0.0
        """When it last sent a sign of life or was busy."""
        self.kill_reason = ""
        """Why it was killed for its silence, for the operator. Empty if it was not."""


class ProcessTree:
    """The state of all parts (processes of the agent), and the decisions about them.

    The module docstring has the rules.
    """

    def __init__(self, parts: Sequence[ProcessSpec]) -> None:
        self._parts = {part.name: part for part in parts}
        self.part_states = {part.name: PartState() for part in parts}
        self._were_all_ready = False
        self._is_stopping = False
        self._stop_requested_at_s: float | None = None
        self._is_finished = False
        self._end_reason = ""

    def start(self, now_s: float) -> list[Effect]:
        """Return the effects that start the agent: spawn all parts, and let those without dependencies begin."""
        effects: list[Effect] = []
        for name in self._parts:
            effects += self._spawn(name, now_s)
        return effects + self._begin_ready_parts(now_s)

    def handle_event(self, event: Event, now_s: float) -> list[Effect]:
        """Update the state of the parts after an event, and return the effects to carry out, in order."""
        match event:
            case PartReady(part):
                return self._on_ready(part, now_s)
            case PartEnded():
                return self._on_end(event, now_s)
            case PartAlive(part):
                self._record_sign_of_life(part, now_s)
                return []
            case PartExamined(part, activity):
                return self._on_examined(part, activity, now_s)
            case StopRequested():
                return self._on_stop_requested(now_s)
            case TimerFired():
                return self._on_timer(now_s)

    def next_deadline_s(self) -> float | None:
        """Return when a `TimerFired` event is due, or `None` if no part has a deadline."""
        return min((s.deadline_s for s in self.part_states.values() if s.phase is not PartPhase.GONE), default=None)

    def _on_stop_requested(self, now_s: float) -> list[Effect]:
        """Stop all parts at the first request.

        Kill them at a second one, unless it follows within `STOP_DEDUPLICATION_S`.
        """
        if self._stop_requested_at_s is not None:
            return self._kill_all() if now_s - self._stop_requested_at_s >= STOP_DEDUPLICATION_S else []
        self._stop_requested_at_s = now_s
        return [] if self._is_stopping else self._stop(now_s)

    def _on_ready(self, name: str, now_s: float) -> list[Effect]:
        """Record that the part is ready, and let parts begin that depend on it. Announce once when all parts are ready."""
        state = self.part_states[name]
        if state.phase is not PartPhase.STARTING:
            return []  # The part was asked to stop meanwhile.
        self._enter_phase(name, PartPhase.READY, now_s)
        effects = self._begin_ready_parts(now_s)
        if not self._were_all_ready and all(s.phase is PartPhase.READY for s in self.part_states.values()):
            self._were_all_ready = True
            effects.append(AnnounceReady())
        return effects

    def _on_end(self, event: PartEnded, now_s: float) -> list[Effect]:
        """Plan the restart of a part that ended, or stop the tree (rules 2 to 4)."""
        state = self.part_states[event.part]
        if self._is_stopping:
            self._enter_phase(event.part, PartPhase.GONE, now_s)
            return self._stop_next(now_s)
        if state.phase is PartPhase.READY and now_s - state.since_s >= RESET_FAILURES_AFTER_S:
            state.ends_in_a_row = 0
        state.ends_in_a_row += 1
        if not self._were_all_ready and (event.reason or state.ends_in_a_row >= MAX_ENDS_BEFORE_READY):
            self._end_reason = (
                event.reason
                or f"{event.part} ended {state.ends_in_a_row} times before it was ready ({event.exit_text})"
            )
            self._enter_phase(event.part, PartPhase.GONE, now_s)
            return self._stop(now_s)
        exit_text = state.kill_reason or event.exit_text
        was_killed = self._were_all_ready and not event.reason
        pauses_s = RESTART_PAUSES_AFTER_KILL_S if was_killed else RESTART_PAUSES_S
        pause_s = pauses_s[min(state.ends_in_a_row, len(pauses_s)) - 1]
        pause_s = min(pause_s, self._parts[event.part].max_restart_pause_s)
        self._enter_phase(event.part, PartPhase.RESTING, now_s)
        state.deadline_s = now_s + pause_s
        cause = f"{exit_text}: {event.reason}" if event.reason else exit_text
        return [LogPartEnded(event.part, cause, pause_s)]

    def _on_timer(self, now_s: float) -> list[Effect]:
        """Act on all deadlines that have passed: examine silent parts, kill parts that stop too slowly, and spawn ended
        parts again.
        """
        effects: list[Effect] = []
        self._skip_stall(now_s)
        for name, state in self.part_states.items():
            if state.deadline_s > now_s:
                continue
            if state.phase in _PHASES_WITH_SILENCE_LIMIT:
                state.deadline_s = now_s + EXAMINATION_INTERVAL_S
                effects.append(ExaminePart(name))
            elif state.phase is PartPhase.RESTING:
                effects += self._spawn(name, now_s)
            elif state.phase is PartPhase.STOPPING:
                state.deadline_s = now_s + self._parts[name].grace_s  # Kill again if the first kill has no effect.
                effects += [LogPartKilled(name), KillPart(name)]
        return effects + self._begin_ready_parts(now_s)

    def _skip_stall(self, now_s: float) -> None:
        """If no deadline was handled for a long time, do not count this time as silence of any part."""
        watched = [state for state in self.part_states.values() if state.phase in _PHASES_WITH_SILENCE_LIMIT]
        stalled_s = now_s - min((state.deadline_s for state in watched), default=now_s)
        if stalled_s > STALL_THRESHOLD_S:
            for state in watched:
                state.alive_at_s = min(now_s, state.alive_at_s + stalled_s)
                state.active_at_s = min(now_s, state.active_at_s + stalled_s)

    def _on_examined(self, name: str, activity: Activity, now_s: float) -> list[Effect]:
        """Kill a silent part if it has exceeded the limit for what it does."""
        state = self.part_states[name]
        if state.phase not in _PHASES_WITH_SILENCE_LIMIT:
            return []  # It was asked to stop, or has ended.
        if activity is Activity.BUSY:
            state.active_at_s = now_s
        limit_s = find_exceeded_limit(
            activity,
            self._get_silence_limits(name, activity),
            silent_s=now_s - state.alive_at_s,
            inactive_s=now_s - state.active_at_s,
        )
        if limit_s is None:
            return []
        if not state.kill_reason:
            state.kill_reason = f"killed: {activity.value}, and no sign of life for {limit_s:g} s"
        return [KillPart(name)]  # Again at each examination, if the first kill has no effect.

    def _spawn(self, name: str, now_s: float) -> list[Effect]:
        self._enter_phase(name, PartPhase.LOADING, now_s)
        return [SpawnPart(name)]

    def _begin_ready_parts(self, now_s: float) -> list[Effect]:
        """Let every loaded part begin whose dependencies are ready."""
        effects: list[Effect] = []
        for name, part in self._parts.items():
            can_begin = all(self.part_states[dependency].phase is PartPhase.READY for dependency in part.dependencies)
            if self.part_states[name].phase is PartPhase.LOADING and can_begin:
                self._enter_phase(name, PartPhase.STARTING, now_s)
                effects.append(BeginPart(name))
        return effects

    def _stop(self, now_s: float) -> list[Effect]:
        """Begin to stop the tree. Parts that wait for a restart are not spawned again."""
        self._is_stopping = True
        for name, state in self.part_states.items():
            if state.phase is PartPhase.RESTING:
                self._enter_phase(name, PartPhase.GONE, now_s)
        return self._stop_next(now_s)

    def _stop_next(self, now_s: float) -> list[Effect]:
        """Stop every part that no living part depends on. Finish once all parts have ended."""
        effects: list[Effect] = []
        for name, part in self._parts.items():
            state = self.part_states[name]
            if state.phase not in _PHASES_WITH_PROCESS or state.phase is PartPhase.STOPPING:
                continue
            if not any(
                name in dependent.dependencies and self._is_living(dependent.name) for dependent in self._parts.values()
            ):
                self._enter_phase(name, PartPhase.STOPPING, now_s)
                state.deadline_s = now_s + part.grace_s
                effects.append(StopPart(name))
        if not self._is_finished and not any(self._is_living(name) for name in self._parts):
            self._is_finished = True
            effects.append(FinishTree(self._end_reason))
        return effects

    def _kill_all(self) -> list[Effect]:
        return [KillPart(name) for name in self._parts if self._is_living(name)]

    def _is_living(self, name: str) -> bool:
        return self.part_states[name].phase in _PHASES_WITH_PROCESS

    def _enter_phase(self, name: str, phase: PartPhase, now_s: float) -> None:
        """Set the phase of a part, which is one process of the agent, and restart the time in which it must send a sign
        of life.
        """
        state = self.part_states[name]
        state.phase = phase
        state.since_s = now_s
        if phase is PartPhase.LOADING:
            state.kill_reason = ""
        self._record_sign_of_life(name, now_s)

    def _record_sign_of_life(self, name: str, now_s: float) -> None:
        """Restart the time in which the part must send a sign of life."""
        state = self.part_states[name]
        if state.phase in _PHASES_WITH_SILENCE_LIMIT and not state.kill_reason:
            state.alive_at_s = state.active_at_s = now_s
            state.deadline_s = now_s + EXAMINE_AFTER_S

    def _get_silence_limits(self, name: str, activity: Activity) -> SilenceLimits:
        """Return how long the part may send no sign of life in its phase. No phase needs longer in a stopped process."""
        limits = self._parts[name].silence_limits
        if self.part_states[name].phase is PartPhase.READY or activity is Activity.STOPPED:
            return limits
        return SilenceLimits(
            max_busy_s=MAX_SILENCE_BEFORE_READY_S,
            max_idle_s=MAX_IDLE_BEFORE_READY_S,
            max_unknown_s=MAX_SILENCE_BEFORE_READY_S,
        )
