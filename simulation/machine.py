"""The simulated machine of a node: its disk, its supervisor, and programs that follow the config of their task.

The machine outlives the node's agent, as a real one does. It simulates programs, the connection to the supervisor, and
their faults, and records what really happened in the `TaskRunLog`. The checks of node reports use that log.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import Context
from random import Random
from typing import Final, Protocol

import msgspec

from simulation.fault_source import FaultSource
from simulation.loop import SimulatedLoop
from simulation.step_texts import write_texts
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
"""Data that was written to a run's folder within this time before a power failure may be lost."""


class SimulatedDisk:
    """The file of a node's journal (a `JournalFile`). A power failure may lose data that was not synced."""

    def __init__(self, loop: SimulatedLoop, random: Random, own_context: Context) -> None:
        self.size = 0
        self.is_full = False
        self.is_losing_all = False
        """A planted bug: the disk confirms each sync and stores nothing."""
        self._loop = loop
        self._random = random
        self._own_context = own_context
        self._data = bytearray()
        self._durable_bytes = 0
        self._replace_count = 0

    def read(self) -> bytes:
        self.size = len(self._data)
        return bytes(self._data)

    def append(self, data: bytes) -> None:
        self._require_free_space()
        self._data += data
        self.size = len(self._data)

    def sync(self) -> asyncio.Future[None]:
        """Return a future that completes when the current data is durable."""
        done: asyncio.Future[None] = self._loop.create_future()
        length, replace_count = len(self._data), self._replace_count

        def complete() -> None:
            if self._replace_count == replace_count and not self.is_losing_all:
                self._durable_bytes = max(self._durable_bytes, length)
            if not done.done():
                done.set_result(None)

        delay_s = self._random.uniform(0.000_5, 0.02)
        self._own_context.run(self._loop.call_later, delay_s, complete)
        return done

    def replace(self, parts: Iterable[bytes]) -> None:
        self._require_free_space()
        self._data = bytearray(b"".join(parts))
        self.size = self._durable_bytes = len(self._data)
        self._replace_count += 1

    def read_end(self) -> bytes:
        return b""

    def write_end(self, data: bytes) -> None:
        """Do nothing: the loss of power may lose any data that was not synced."""

    def save_damaged(self, data: bytes) -> None:
        """Do nothing: no part of the simulation reads damaged data."""

    def close(self) -> None:
        return

    def lose_power(self) -> None:
        """Drop a random part of the data that was not synced."""
        length = self._random.randint(self._durable_bytes, len(self._data))
        del self._data[length:]
        self._durable_bytes = len(self._data)
        self._replace_count += 1

    def _require_free_space(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class RunReport(msgspec.Struct, frozen=True):
    """A supervisor's report about a run. Without an outcome, the run is starting or running."""

    run: str
    has_started: bool
    outcome: Outcome | None = None


class SupervisorListener(Protocol):
    """The agent's end of the connection to the supervisor. The machine calls it outside the agent's process."""

    def receive_report(self, report: RunReport) -> None: ...

    def on_disconnected(self) -> None: ...


class TaskStart(msgspec.Struct, frozen=True):
    """A request to the supervisor to start a task once."""

    run: str
    allocation_id: str
    task: str
    group: TaskGroup
    config: Mapping[str, object]
    step_texts: Mapping[str, Mapping[str, str]] = {}
    """The texts of earlier steps, by step and name."""


class SimulatedMachine:
    """The supervisor of a node, the runs that it supervises, and the node's disk."""

    def __init__(
        self, name: str, seed: int, loop: SimulatedLoop, fault_source: FaultSource, task_runs: TaskRunLog
    ) -> None:
        self.name = name
        self.boot_count = 1
        self.booted_s = 0.0
        self.steady_since_s = 0.0
        """When the last fault that may delay the node happened or ended."""
        self.is_guessing_outcomes = False
        """A planted bug: the supervisor reports success for every program that ended."""
        self._random = Random(f"{seed}/machine/{name}")
        self._own_context = Context()
        self.disk = SimulatedDisk(loop, self._random, self._own_context)
        self._loop = loop
        self._fault_source = fault_source
        self._task_runs = task_runs
        self._runs: dict[str, TaskRun] = {}
        """The runs that have a folder at the supervisor, by name."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._listener: SupervisorListener | None = None
        self._connection_number = 0

    @property
    def boot_id(self) -> str:
        return f"{self.name}#{self.boot_count}"

    def list_alive_runs(self) -> list[TaskRun]:
        return [task_run for task_run in self._runs.values() if task_run.is_alive]

    # -- the connection to the agent

    def connect(self, listener: SupervisorListener) -> tuple[int, list[RunReport]]:
        """Replace the connection. Return the number of the new one, and the reports of all known runs."""
        self._listener = listener
        self._connection_number += 1
        return self._connection_number, [self._make_report(task_run) for task_run in self._runs.values()]

    def deliver_at(self, at_s: float, connection_number: int, action: Callable[[], None]) -> None:
        """Call `action` at this time, if the connection still exists then."""

        def deliver() -> None:
            if connection_number == self._connection_number:
                action()

        self._own_context.run(self._loop.call_at, at_s, deliver)

    def _make_report(self, task_run: TaskRun) -> RunReport:
        outcome = task_run.outcome
        if self.is_guessing_outcomes and outcome is not None:
            outcome = Outcome()
        return RunReport(task_run.run, task_run.started_s is not None, outcome)

    def _send_report(self, task_run: TaskRun) -> None:
        if self._listener is not None:
            self._listener.receive_report(self._make_report(task_run))

    # -- requests to the supervisor

    def start(self, task_start: TaskStart) -> None:
        """Start a run after a short delay. A run that is known already is only reported."""
        known_run = self._runs.get(task_start.run)
        if known_run is not None:
            self._send_report(known_run)
            return
        task_run = TaskRun(
            task_start.run, task_start.allocation_id, task_start.task, task_start.group, task_start.config,
            step_texts=task_start.step_texts,
        )  # fmt: skip
        self._runs[task_start.run] = task_run
        late_s = self._random.uniform(1.0, 8.0) if self._fault_source.draw_fault(TASK_STARTS_LATE, once_in=60) else 0.0
        self._schedule(task_run, late_s + self._random.uniform(0.001, 0.05), self._start_program)

    def read_texts(self, allocation_id: str, names: Collection[str]) -> dict[str, str]:
        """Return the text outputs of an allocation with these names. Programs write them when they start."""
        has_started = bool(self._task_runs.list_task_runs(allocation_id, "task"))
        texts = write_texts(allocation_id) if has_started else {}
        return {name: text for name, text in texts.items() if name in names}

    def signal(self, run: str) -> None:
        """Send the stop signal of its task to a run. Some programs ignore it."""
        task_run = self._runs.get(run)
        if task_run is None or not task_run.is_unfinished:
            return
        task_run.is_signalled = True
        if task_run.started_s is not None and not task_run.is_ignoring_signals:
            outcome = self._random.choice([ENDED_BY_SIGINT, ENDED_BY_SIGINT, Outcome()])
            self._end_later(task_run, self._random.uniform(0.0, 0.5), outcome)

    def kill(self, run: str) -> None:
        """Kill a run. Sometimes the program survives the kill for up to 10 seconds."""
        task_run = self._runs.get(run)
        if task_run is None or not task_run.is_unfinished:
            return
        task_run.is_kill_requested = True
        if task_run.started_s is None:
            return
        survives = self._fault_source.draw_fault(TASK_SURVIVES_KILL, once_in=12)
        self._end_later(task_run, self._random.uniform(0.5, 10.0) if survives else 0.01, ENDED_BY_SIGKILL)

    def delete_run(self, run: str) -> None:
        """Delete the folder of a run that has ended."""
        task_run = self._runs.get(run)
        if task_run is not None and not task_run.is_unfinished:
            del self._runs[run]

    # -- programs

    def _schedule(self, task_run: TaskRun, delay_s: float, action: Callable[[TaskRun], None]) -> None:
        """Replace the timer of a run."""
        self._stop_timer(task_run)
        self._timers[task_run.run] = self._own_context.run(self._loop.call_later, delay_s, action, task_run)

    def _stop_timer(self, task_run: TaskRun) -> None:
        if (timer := self._timers.pop(task_run.run, None)) is not None:
            timer.cancel()

    def _start_program(self, task_run: TaskRun) -> None:
        """Start the program of a run, schedule its end, and apply earlier signals to it."""
        self._stop_timer(task_run)
        task_run.started_s = self._loop.time()
        task_run.is_ignoring_signals = self._fault_source.draw_fault(TASK_IGNORES_SIGNAL, once_in=12)
        self._task_runs.record_start(task_run)
        self._send_report(task_run)
        run_s = read_duration_s(task_run.config, "run_for")
        if run_s is not None:
            self._end_later(task_run, run_s, read_scripted_outcome(task_run.config))
        if task_run.is_kill_requested:
            self.kill(task_run.run)
        elif task_run.is_signalled:  # The signal arrived before the program had started.
            self.signal(task_run.run)

    def _end_later(self, task_run: TaskRun, delay_s: float, outcome: Outcome) -> None:
        """End the program after a delay, unless it ends earlier for another reason."""
        due_s = self._loop.time() + delay_s
        timer = self._timers.get(task_run.run)
        if timer is None or timer.when() > due_s:
            self._schedule(task_run, delay_s, lambda ended: self._end(ended, outcome))

    def _end(self, task_run: TaskRun, outcome: Outcome) -> None:
        self._stop_timer(task_run)
        task_run.outcome = UNKNOWN if task_run.is_shim_killed else outcome
        task_run.ended_s = self._loop.time()
        self._send_report(task_run)

    # -- faults

    def kill_supervisor(self) -> None:
        """Kill the supervisor. Programs continue. A run that was about to start has started, or never existed."""
        self.record_disturbance()
        self._connection_number += 1
        listener, self._listener = self._listener, None
        for task_run in [run for run in self._runs.values() if run.is_unfinished and run.started_s is None]:
            if self._random.random() < 0.5:
                self._start_program(task_run)
            else:
                self._delete(task_run)
        if listener is not None:
            listener.on_disconnected()

    def kill_shim(self) -> bool:
        """Kill the shim of a random program, so that its outcome is lost. Return whether a program was running."""
        alive = self.list_alive_runs()
        if alive:
            self._random.choice(alive).is_shim_killed = True
        return bool(alive)

    def lose_power(self) -> None:
        """End all programs, and lose data that was not on the disk yet."""
        self.record_disturbance()
        self._connection_number += 1
        self._listener = None
        now_s = self._loop.time()
        for task_run in list(self._runs.values()):
            self._stop_timer(task_run)
            is_unsynced = task_run.started_s is None or now_s - task_run.started_s < UNSYNCED_WINDOW_S
            if task_run.is_unfinished:
                task_run.outcome, task_run.ended_s = UNKNOWN, now_s
            elif (
                task_run.ended_s is not None
                and now_s - task_run.ended_s < UNSYNCED_WINDOW_S
                and self._random.random() < 0.5
            ):
                task_run.lost_outcome, task_run.outcome = task_run.lost_outcome or task_run.outcome, UNKNOWN
            if is_unsynced and self._random.random() < 0.5:
                self._delete(task_run)
        self._task_runs.record_power_loss(self.name)
        self.disk.lose_power()
        self.boot_count += 1
        self.booted_s = now_s

    def fill_disk(self, *, is_full: bool) -> None:
        self.record_disturbance()
        self.disk.is_full = is_full

    def record_disturbance(self) -> None:
        """Record a fault that may delay the node. The time limits of the node start again now."""
        self.steady_since_s = self._loop.time()

    def _delete(self, task_run: TaskRun) -> None:
        self._stop_timer(task_run)
        del self._runs[task_run.run]
