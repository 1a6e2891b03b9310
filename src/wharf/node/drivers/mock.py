"""The `mock` driver: starts no process and plays a script from the task's config, for tests and for trying out jobs.

`MockConfig` describes its options. Runs are not stored: after a restart of the agent their outcome is unknown.
"""

import asyncio
import signal
from collections.abc import Callable, Collection, Mapping
from typing import Final

from wharf.contract.model.drivers.options import convert_options
from wharf.contract.model.times import SECOND, DurationError, parse_duration_ns
from wharf.node.core.outcome import UNKNOWN, Outcome
from wharf.node.drivers.port import CannotStart, Health, TaskOrder, View, Watcher

DURATION_KEYS: Final = ("run_for", "start_block_for", "kill_after")
SIGNAL_EXIT_CODE_BASE: Final = 128


class MockDriver:
    """The driver that starts no process, but reports the start, end and exit code that the task's config describes."""

    view = View.HOST

    def __init__(self, watcher: Watcher, *, name: str = "mock") -> None:
        self.name = name
        self._watcher = watcher
        self._configs: dict[str, Mapping[str, object]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def probe(self) -> Health:
        return Health(is_healthy=True)

    async def start(self, order: TaskOrder) -> None:
        """Schedule the start and the end that the config describes. Does nothing if the run is known.

        Raises CannotStart if the config describes a failed start or has an invalid duration.
        """
        if order.run in self._configs:
            return
        config = convert_options(self.name, order.config)
        check_durations(config)
        if config.get("start_error"):
            raise CannotStart(str(config["start_error"]), is_final=not config.get("start_error_recoverable"))
        self._configs[order.run] = config
        self._call_after(order.run, read_duration_s(config, "start_block_for") or 0.0, lambda: self._begin(order.run))

    async def recover(self, runs: Collection[str]) -> None:
        """Report an unknown outcome for runs that an earlier agent process started."""
        for run in runs:
            if run not in self._configs:
                self._watcher.on_ended(run, UNKNOWN)

    def signal(self, run: str, _name: str) -> None:
        """End the run after the configured `kill_after`, as if it was ended by SIGINT."""
        if run in self._configs:
            wait_s = read_duration_s(self._configs[run], "kill_after") or 0.0
            self._call_after(run, wait_s, lambda: self._end(run, _build_signal_outcome(signal.SIGINT)))

    def give_up(self, run: str) -> None:
        """Do nothing: a start that blocks ends after its configured `start_block_for`."""

    def kill(self, run: str) -> None:
        if run in self._configs:
            self._end(run, _build_signal_outcome(signal.SIGKILL))

    def forget(self, run: str) -> None:
        self._configs.pop(run, None)

    def _begin(self, run: str) -> None:
        """Report the start of a run, and schedule its end after the configured `run_for`, if it is set."""
        config = self._configs[run]
        self._watcher.on_begun(run)
        run_s = read_duration_s(config, "run_for")
        if run_s is not None:
            self._call_after(run, run_s, lambda: self._end(run, read_scripted_outcome(config)))

    def _call_after(self, run: str, wait_s: float, callback: Callable[[], None]) -> None:
        """Call `callback` after `wait_s` seconds. A run has one timer: this replaces the earlier one."""
        self._stop_timer(run)
        self._timers[run] = asyncio.get_running_loop().call_later(wait_s, callback)

    def _end(self, run: str, outcome: Outcome) -> None:
        """Cancel the run's timer and report its outcome."""
        self._stop_timer(run)
        self._watcher.on_ended(run, outcome)

    def _stop_timer(self, run: str) -> None:
        if (timer := self._timers.pop(run, None)) is not None:
            timer.cancel()


def _build_signal_outcome(signal_number: int) -> Outcome:
    """Return the outcome of a run that was ended by the signal `signal_number`."""
    return Outcome(SIGNAL_EXIT_CODE_BASE + signal_number, signal_number)


def read_scripted_outcome(config: Mapping[str, object]) -> Outcome:
    """Return the outcome that the config describes by `exit_code`, `exit_signal` and `exit_err_msg`."""
    code, number = (read_int(config, name) for name in ("exit_code", "exit_signal"))
    message = str(config.get("exit_err_msg") or "")
    return Outcome(SIGNAL_EXIT_CODE_BASE + number if number else code, number, message=message)


def read_duration_s(config: Mapping[str, object], name: str) -> float | None:
    """Return the duration under the key `name` of the config, in seconds; None if it is missing or invalid.

    A number is in nanoseconds, a text is such as `10s`.
    """
    value = config.get(name)
    if isinstance(value, int | float):
        return value / SECOND
    if isinstance(value, str):
        try:
            return parse_duration_ns(value) / SECOND
        except DurationError:
            return None
    return None


def check_durations(config: Mapping[str, object]) -> None:
    """Check the durations of the config. Raises CannotStart if one is invalid.

    Without this check a task with an invalid `run_for` would run forever.
    """
    for name in DURATION_KEYS:
        if config.get(name) is not None and read_duration_s(config, name) is None:
            raise CannotStart(f"config: `{name}` must be a duration such as 10s", is_final=True)


def read_int(config: Mapping[str, object], name: str) -> int:
    """Return the integer under the key `name` of the config; 0 if it is missing or not an integer."""
    value = config.get(name)
    return value if isinstance(value, int) else 0
