"""Whether a task that ended is started again here, and when: the restart policy in both modes."""

from typing import Final

import msgspec

from wharf.model.durations import say_duration
from wharf.model.policies import RestartMode, RestartPolicy
from wharf.model.task_event_text import WITHIN_POLICY
from wharf.node.core.moment import SECOND_NS, Now

JITTER: Final = 0.25
NO_RESTARTS: Final = "Policy allows no restarts"
DELAYED: Final = "Exceeded allowed attempts, applying a delay"
UNRECOVERABLE: Final = "Error was unrecoverable"


class Window(msgspec.Struct, frozen=True, omit_defaults=True):
    """The interval that attempts are counted in, from its first failure on."""

    began_s: float = 0.0
    count: int = 0


class Again(msgspec.Struct, frozen=True):
    """It is started again after a while."""

    delay_s: float
    reason: str
    window: Window


class GivenUp(msgspec.Struct, frozen=True):
    reason: str


def decide(policy: RestartPolicy, window: Window, now: Now) -> Again | GivenUp:
    """What becomes of a task that ended and is not done."""
    if policy.attempts == 0:
        return GivenUp(NO_RESTARTS)
    interval_s = policy.interval / SECOND_NS
    if window.count == 0 or now.monotonic_s - window.began_s >= interval_s:
        window = Window(now.monotonic_s, 0)
    window = Window(window.began_s, window.count + 1)
    if window.count <= policy.attempts:
        delay_s = policy.delay / SECOND_NS * (1 + JITTER * now.chance)
        return Again(delay_s, WITHIN_POLICY, window)
    if policy.mode == RestartMode.DELAY:
        left_s = max(0.0, window.began_s + interval_s - now.monotonic_s)
        return Again(left_s, DELAYED, window)
    interval = say_duration(policy.interval)
    return GivenUp(f'Exceeded allowed attempts {policy.attempts} in interval {interval} and mode is "fail"')
