"""Decides whether and when a task that ended is started again on this node, by its restart policy."""

from typing import Final

import msgspec

from wharf.contract.model.allocations.task_event_messages import RESTART_WITHIN_POLICY
from wharf.contract.model.jobs.group_policies import RestartMode, RestartPolicy
from wharf.contract.model.times import SECOND, format_duration
from wharf.node.core.clock import ClockReading

RESTART_JITTER_FRACTION: Final = 0.25
"""The delay grows by up to this fraction at random, so that tasks do not restart at the same moment."""
NO_RESTARTS_MESSAGE: Final = "Policy allows no restarts"
DELAY_MESSAGE: Final = "Exceeded allowed attempts, applying a delay"
UNRECOVERABLE_MESSAGE: Final = "Error was unrecoverable"


class RestartWindow(msgspec.Struct, frozen=True, omit_defaults=True):
    """The interval in which the restarts of a task are counted; it begins with the first counted end of the task."""

    began_s: float = 0.0  # on the monotonic clock
    count: int = 0  # restarts in this interval


class RestartAfterDelay(msgspec.Struct, frozen=True):
    """The decision to start the task again after `delay_s` seconds."""

    delay_s: float
    reason: str  # for the task's history
    window: RestartWindow  # the counted restarts, this one included


class NoRestart(msgspec.Struct, frozen=True):
    """The decision not to start the task again."""

    reason: str  # for the task's history


def decide_restart(policy: RestartPolicy, window: RestartWindow, now: ClockReading) -> RestartAfterDelay | NoRestart:
    """Return whether and when a task is started again that failed, or that ended although it should keep running.

    `window` has the restarts that were counted before.
    """
    if policy.attempts == 0:
        return NoRestart(NO_RESTARTS_MESSAGE)
    interval_s = policy.interval / SECOND
    if window.count == 0 or now.monotonic_s - window.began_s >= interval_s:
        window = RestartWindow(now.monotonic_s, 0)
    window = RestartWindow(window.began_s, window.count + 1)
    if window.count <= policy.attempts:
        delay_s = policy.delay / SECOND * (1 + RESTART_JITTER_FRACTION * now.random_fraction)
        return RestartAfterDelay(delay_s, RESTART_WITHIN_POLICY, window)
    if policy.mode == RestartMode.DELAY:
        remaining_s = max(0.0, window.began_s + interval_s - now.monotonic_s)
        return RestartAfterDelay(remaining_s, DELAY_MESSAGE, window)
    interval = format_duration(policy.interval)
    return NoRestart(f'Exceeded allowed attempts {policy.attempts} in interval {interval} and mode is "fail"')
