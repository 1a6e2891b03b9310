"""The machine under a simulated node: its disk, its supervisor, and programs that do what their script says.

It outlives the node's agent, as the real ones do. Played are a program's life, the way to the supervisor, and all that
may befall either; what really happened goes into the `Ledger`, against which reports are held.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from random import Random
from typing import Final, Protocol

import msgspec

from simulation.fault_source import FaultSource
from simulation.loop import SimulatedLoop
from simulation.task_runs import TaskRun, TaskRunLog
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.node.core.outcome import UNKNOWN, Outcome
from wharf.node.drivers.mock import read_duration_s, read_scripted_outcome

TASK_STARTS_LATE: Final = "task starts late"
TASK_IGNORES_SIGNAL: Final = "task ignores its signal"
TASK_SURVIVES_KILL: Final = "task does not end when killed"
TASK_FAULTS: Final = (TASK_STARTS_LATE, TASK_IGNORES_SIGNAL, TASK_SURVIVES_KILL)

ENDED_BY_SIGINT: Final = Outcome(130, 2)
ENDED_BY_SIGKILL: Final = Outcome(137, 9)
UNSYNCED_WINDOW_S: Final = 5.0
"""What a program's folder was given within this time before the power fails may be lost."""


class SimulatedDisk:
    """The journal's file (`JournalFile`). What was not synced may be lost with the power."""

    def __init__(self, loop: SimulatedLoop, random: Random, outside: Context) -> None:
        self.size = 0
        self.is_full = False
        self.is_losing_all = False
        """A planted bug: it says that all is on the disk, and nothing is."""
        self._loop = loop
        self._random = random
        self._outside = outside
        self._data = bytearray()
        self._durable = 0
        self._times_replaced = 0

    def read(self) -> bytes:
        self.size = len(self._data)
        return bytes(self._data)

    def append(self, data: bytes) -> None:
        self._require_room()
        self._data += data
        self.size = len(self._data)

    def sync(self) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        length, times = len(self._data), self._times_replaced

        def reach() -> None:
            if self._times_replaced == times and not self.is_losing_all:
                self._durable = max(self._durable, length)
            if not done.done():
                done.set_result(None)

        took_s = self._random.uniform(0.000_5, 0.02)
        self._outside.run(self._loop.call_later, took_s, reach)
        return done

    def replace(self, parts: Sequence[bytes]) -> None:
        self._require_room()
        self._data = bytearray(b"".join(parts))
        self.size = self._durable = len(self._data)
        self._times_replaced += 1

    def save_damaged(self, data: bytes) -> None:
        """Nobody reads it here."""

    def close(self) -> None:
        return

    def lose_power(self) -> None:
        kept = self._random.randint(self._durable, len(self._data))
        del self._data[kept:]
        self._durable = len(self._data)
        self._times_replaced += 1

    def _require_room(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class RunReport(msgspec.Struct, frozen=True):
    """What a supervisor says of a run. Without an outcome: it has begun, or is only just beginning."""

    run: str
    has_begun: bool
    outcome: Outcome | None = None


class SupervisorListener(Protocol):
    """The end of the way to the supervisor that is the agent's. Called from outside of it."""

    def receive_report(self, report: RunReport) -> None: ...

    def on_disconnected(self) -> None: ...


class TaskStart(msgspec.Struct, frozen=True):
    """One start of one task, as the supervisor is told."""

    run: str
    allocation_id: str
    task: str
    group: TaskGroup
    config: Mapping[str, object]


class SimulatedMachine:
    def __init__(
        self, name: str, seed: int, loop: SimulatedLoop, fault_source: FaultSource, task_runs: TaskRunLog
    ) -> None:
        self.name = name
        self.boot_count = 1
        self.booted_s = 0.0
        self.steady_since_s = 0.0
        """Since when nothing befell the node that excuses it for being late."""
        self.is_guessing_outcomes = False
        """A planted bug: the supervisor tells of every program that it ended well."""
        self._random = Random(f"{seed}/machine/{name}")
        self._outside = Context()
        self.disk = SimulatedDisk(loop, self._random, self._outside)
        self._loop = loop
        self._weather = fault_source
        self._ledger = task_runs
        self._plays: dict[str, TaskRun] = {}
        """The runs that the supervisor has a folder of."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._listener: SupervisorListener | None = None
        self._link = 0

    @property
    def boot_id(self) -> str:
        return f"{self.name}#{self.boot_count}"

    def list_alive_runs(self) -> list[TaskRun]:
        return [play for play in self._plays.values() if play.is_alive]

    # -- the way to the agent

    def connect(self, listener: SupervisorListener) -> tuple[int, list[RunReport]]:
        """The number of the way, and all that the supervisor knows. Who came before is not heard any more."""
        self._listener = listener
        self._link += 1
        return self._link, [self._told(play) for play in self._plays.values()]

    def deliver_at(self, at_s: float, link: int, action: Callable[[], None]) -> None:
        """Something that was said on this way arrives then; on one that is no more it never does."""

        def arrived() -> None:
            if link == self._link:
                action()

        self._outside.run(self._loop.call_at, at_s, arrived)

    def _told(self, play: TaskRun) -> RunReport:
        outcome = play.outcome
        if self.is_guessing_outcomes and outcome is not None:
            outcome = Outcome()
        return RunReport(play.run, play.began_s is not None, outcome)

    def _tell(self, play: TaskRun) -> None:
        if self._listener is not None:
            self._listener.receive_report(self._told(play))

    # -- what the supervisor is asked

    def start(self, task_start: TaskStart) -> None:
        known = self._plays.get(task_start.run)
        if known is not None:
            self._tell(known)
            return
        play = TaskRun(task_start.run, task_start.allocation_id, task_start.task, task_start.group, task_start.config)
        self._plays[task_start.run] = play
        late_s = self._random.uniform(1.0, 8.0) if self._weather.draw_fault(TASK_STARTS_LATE, once_in=60) else 0.0
        self._later(play, late_s + self._random.uniform(0.001, 0.05), self._begin)

    def signal(self, run: str) -> None:
        play = self._plays.get(run)
        if play is None or not play.is_unfinished:
            return
        play.is_signalled = True
        if play.began_s is not None and not play.is_ignoring_signals:
            how = self._random.choice([ENDED_BY_SIGINT, ENDED_BY_SIGINT, Outcome()])
            self._end_later(play, self._random.uniform(0.0, 0.5), how)

    def kill(self, run: str) -> None:
        play = self._plays.get(run)
        if play is None or not play.is_unfinished:
            return
        play.is_kill_requested = True
        if play.began_s is None:
            return
        clings = self._weather.draw_fault(TASK_SURVIVES_KILL, once_in=12)
        self._end_later(play, self._random.uniform(0.5, 10.0) if clings else 0.01, ENDED_BY_SIGKILL)

    def forget(self, run: str) -> None:
        play = self._plays.get(run)
        if play is not None and not play.is_unfinished:
            del self._plays[run]

    # -- the life of a program

    def _later(self, play: TaskRun, wait_s: float, then: Callable[[TaskRun], None]) -> None:
        self._stop_timer(play)
        self._timers[play.run] = self._outside.run(self._loop.call_later, wait_s, then, play)

    def _stop_timer(self, play: TaskRun) -> None:
        if (timer := self._timers.pop(play.run, None)) is not None:
            timer.cancel()

    def _begin(self, play: TaskRun) -> None:
        self._stop_timer(play)
        play.began_s = self._loop.time()
        play.is_ignoring_signals = self._weather.draw_fault(TASK_IGNORES_SIGNAL, once_in=12)
        self._ledger.record_start(play)
        self._tell(play)
        run_s = read_duration_s(play.config, "run_for")
        if run_s is not None:
            self._end_later(play, run_s, read_scripted_outcome(play.config))
        if play.is_kill_requested:
            self.kill(play.run)
        elif play.is_signalled:  # It came too early, and is kept for it.
            self.signal(play.run)

    def _end_later(self, play: TaskRun, wait_s: float, how: Outcome) -> None:
        """The soonest end is the one that comes."""
        due_s = self._loop.time() + wait_s
        timer = self._timers.get(play.run)
        if timer is None or timer.when() > due_s:
            self._later(play, wait_s, lambda ended: self._end(ended, how))

    def _end(self, play: TaskRun, how: Outcome) -> None:
        self._stop_timer(play)
        play.outcome = UNKNOWN if play.is_shim_gone else how
        play.ended_s = self._loop.time()
        self._tell(play)

    # -- what befalls it

    def kill_supervisor(self) -> None:
        """Programs go on. What was only just beginning has begun, or is as if nobody had asked for it."""
        self.record_disturbance()
        self._link += 1
        listener, self._listener = self._listener, None
        for play in [each for each in self._plays.values() if each.is_unfinished and each.began_s is None]:
            if self._random.random() < 0.5:
                self._begin(play)
            else:
                self._drop(play)
        if listener is not None:
            listener.on_disconnected()

    def kill_shim(self) -> bool:
        """Of some program that runs: nobody will ever know how it ends. Whether there was one."""
        alive = self.list_alive_runs()
        if alive:
            self._random.choice(alive).is_shim_gone = True
        return bool(alive)

    def lose_power(self) -> None:
        """All programs are gone, and what was not on the disk yet."""
        self.record_disturbance()
        self._link += 1
        self._listener = None
        now_s = self._loop.time()
        for play in list(self._plays.values()):
            self._stop_timer(play)
            is_young = play.began_s is None or now_s - play.began_s < UNSYNCED_WINDOW_S
            if play.is_unfinished:
                play.outcome, play.ended_s = UNKNOWN, now_s
            elif play.ended_s is not None and now_s - play.ended_s < UNSYNCED_WINDOW_S and self._random.random() < 0.5:
                play.lost_outcome, play.outcome = play.lost_outcome or play.outcome, UNKNOWN
            if is_young and self._random.random() < 0.5:
                self._drop(play)
        self._ledger.record_power_loss(self.name)
        self.disk.lose_power()
        self.boot_count += 1
        self.booted_s = now_s

    def fill_disk(self, *, is_full: bool) -> None:
        self.record_disturbance()
        self.disk.is_full = is_full

    def record_disturbance(self) -> None:
        """From here on it is given its time again."""
        self.steady_since_s = self._loop.time()

    def _drop(self, play: TaskRun) -> None:
        self._stop_timer(play)
        del self._plays[play.run]
