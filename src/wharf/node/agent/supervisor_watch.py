"""Notices a task supervisor that does not answer, reports it, and replaces one that hangs for good.

Tasks continue without a task supervisor; the client of the supervisor starts a new one.
"""

import asyncio
import logging
from pathlib import Path
from typing import Final, Protocol

import msgspec

from wharf.contract.model.nodes.node import NodeEventSubsystem
from wharf.node.agent.servers.node_events import NodeEventQueue
from wharf.node.processes import Process, read_cpu_s, read_stat_fields
from wharf.world import World
from wharf.world.problem_file import store_problem

log = logging.getLogger(__name__)

MIN_BUSY_SHARE: Final = 0.02
"""The part of a processor core that a supervisor must use to count as busy."""
BUSY_STATES: Final = ("R", "D")
"""States of a process that waits for a processor or for the disk. It counts as busy, also if it uses no CPU time."""


class SupervisorSilenceLimits(msgspec.Struct, frozen=True):
    """For how long a task supervisor may be silent, in seconds."""

    check_interval_s: float = 2.0
    """Between two requests for an answer. Every timeout below is longer."""
    max_unreported_s: float = 10.0
    """Until the silence is reported. Shorter pauses are normal while a disk is slow."""
    max_idle_s: float = 30.0
    """Without an answer and without CPU time, until it is replaced: it is stopped or waits for something for ever."""
    max_busy_s: float = 300.0
    """Without an answer while it is busy, until it is replaced. It may be taking over thousands of tasks."""


class WatchedSupervisor(Protocol):
    """The part of the supervisor's client that the watch needs."""

    @property
    def is_silent(self) -> bool:
        """Whether the supervisor has not answered the last request, or no supervisor is connected."""
        ...

    @property
    def process(self) -> Process | None:
        """The process of the supervisor; None if none is connected."""
        ...

    def request_answer(self) -> None:
        """Request an answer, unless the last request was not answered yet."""
        ...

    def kill_process(self) -> bool:
        """Kill the process of the supervisor. Return whether that was possible."""
        ...


class SupervisorWatch:
    """Checks at intervals whether the task supervisor answers."""

    def __init__(
        self,
        world: World,
        supervisor: WatchedSupervisor,
        events: NodeEventQueue,
        state_folder: Path,
        *,
        limits: SupervisorSilenceLimits | None = None,
    ) -> None:
        """Create the watch. The problem is stored in `state_folder` for the health check of the API."""
        self._world = world
        self._supervisor = supervisor
        self._events = events
        self._state_folder = state_folder
        self._limits = limits or SupervisorSilenceLimits()
        self._last_check_s = world.monotonic_s()
        self._silent_s = self._idle_s = 0.0
        self._cpu_s: float | None = None
        self._is_reported = False

    async def run(self) -> None:
        """Check the supervisor at intervals. Runs until canceled."""
        store_problem(self._state_folder, "")
        while True:
            await asyncio.sleep(self._limits.check_interval_s)
            self.check()

    def check(self) -> None:
        """Evaluate the answer to the last request, and send the next one."""
        now_s = self._world.monotonic_s()
        # A pause of this process, such as of a suspended machine, says nothing about the supervisor.
        elapsed_s = min(now_s - self._last_check_s, 2 * self._limits.check_interval_s)
        self._last_check_s = now_s
        if not self._supervisor.is_silent:
            self._end_silence()
            self._supervisor.request_answer()
            return
        self._silent_s += elapsed_s
        self._idle_s = 0.0 if self._is_busy(elapsed_s) else self._idle_s + elapsed_s
        if not self._is_reported and self._silent_s >= self._limits.max_unreported_s:
            self._report()
        if self._silent_s >= self._limits.max_busy_s or self._idle_s >= self._limits.max_idle_s:
            self._replace()

    def _is_busy(self, elapsed_s: float) -> bool:
        """Return whether the supervisor was busy since the last check, in which `elapsed_s` passed."""
        process = self._supervisor.process
        fields = read_stat_fields(process.pid) if process is not None else None
        if fields is None:
            return False
        earlier_s, self._cpu_s = self._cpu_s, read_cpu_s(fields)
        if fields[0] in BUSY_STATES:
            return True
        return earlier_s is not None and self._cpu_s - earlier_s >= MIN_BUSY_SHARE * elapsed_s

    def _report(self) -> None:
        """Report the silence in the log, as an event of the node and for the health check."""
        self._is_reported = True
        process = self._supervisor.process
        log.error("task supervisor does not answer pid=%s silent_s=%.0f", process.pid if process else 0, self._silent_s)
        effect = "no task starts or stops, and output waits, until it does or is replaced"
        self._events.add_event(NodeEventSubsystem.DRIVER, f"The task supervisor does not answer: {effect}")
        store_problem(self._state_folder, f"the task supervisor does not answer: {effect}")

    def _replace(self) -> None:
        """Kill the supervisor; its client then starts a new one. Without a process, the client is already trying to."""
        process, silent_s = self._supervisor.process, self._silent_s
        self._silent_s = self._idle_s = 0.0
        self._cpu_s = None
        if process is None or not self._supervisor.kill_process():
            return
        log.error("replacing task supervisor that does not answer pid=%s silent_s=%.0f", process.pid, silent_s)
        message = "Replaced the task supervisor, because it did not answer. Running tasks continue"
        self._events.add_event(NodeEventSubsystem.DRIVER, message)

    def _end_silence(self) -> None:
        """Report that the supervisor answers again, if its silence was reported."""
        self._silent_s = self._idle_s = 0.0
        self._cpu_s = None
        if self._is_reported:
            self._is_reported = False
            log.warning("task supervisor answers again")
            self._events.add_event(NodeEventSubsystem.DRIVER, "The task supervisor answers again")
            store_problem(self._state_folder, "")
