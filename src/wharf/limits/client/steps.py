"""What a caller is told when waiting does not help, or would take longer than was allowed.

One request from first to last: wait until it may go, send it, hear what the answer says of limits, and so on.

A generator of steps, so that one flow serves callers that block and callers that await. Whoever drives it does what a
step says and sends the outcome in.
"""

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, NamedTuple

from wharf.limits.client.limit_state import (
    GrantedPermit,
    LimitState,
    RequestCost,
    RequiredWait,
    record_response,
    release_permit,
    request_permit,
)
from wharf.limits.client.policy import ClientPolicy
from wharf.limits.client.responses import LimitKind, ResponseLimits, needs_body, read_response_limits
from wharf.world import World


class LimitError(Exception):
    """A limit stands in the way of a request. `until_ns` is when it may be tried again, as this machine's clock has it."""

    def __init__(self, message: str, *, until_ns: int) -> None:
        super().__init__(message)
        self.until_ns = until_ns


class PrimaryExceeded(LimitError):
    """Refused for its primary limit, again and again."""


class SecondaryExceeded(LimitError):
    """Refused for a secondary limit, again and again."""


class WaitTooLong(LimitError):
    """It would have to wait longer than the caller allows. Nothing was sent."""


class WaitNotice(NamedTuple):
    """What a caller's `on_wait` is told before each wait that a limit imposes."""

    url: str
    reason: str
    until_ns: int
    wait_s: float


class UpdateStep(NamedTuple):
    """UpdateStep the standing, and send in what the function gives."""

    update: Callable[[LimitState], Any]


class SleepStep(NamedTuple):
    wait_s: float


class SendStep(NamedTuple):
    """Send the request, and send in a `Heard`; where it fails, throw the error in."""

    needs_body: Callable[[int], bool]


class ReceivedResponse(NamedTuple):
    status: int
    headers: Mapping[str, str]  # By lower-case names.
    body: bytes  # Empty where `needs_body` says no.


class QueueStep(NamedTuple):
    """Stand in line (True), or leave it (False): those who wait for the same thing wait one behind the other."""

    is_entering: bool


Step = UpdateStep | SleepStep | SendStep | QueueStep
# What is sent in depends on the step. At the end: what to do to the standing once the answer's body is read, too.
RequestSteps = Generator[Step, Any, Callable[[LimitState], None]]


def generate_steps(
    world: World,
    policy: ClientPolicy,
    cost: RequestCost,
    url: str,
    *,
    can_repeat: bool,
    on_wait: Callable[[WaitNotice], None] | None = None,
) -> RequestSteps:
    """Ends when the last answer heard is the caller's. Raises LimitError. Errors of a step are thrown in, also the one
    that cancels it: then a few more steps give back what was taken."""
    left_s = policy.longest_wait_s
    tries = 0
    while True:
        permit = world.new_id()
        answer: ResponseLimits | None = None
        try:
            left_s = yield from _turn(world, policy, cost, permit, url, left_s, on_wait)
            heard: ReceivedResponse = yield SendStep(partial(needs_body, is_graphql=cost.is_graphql))
            answer = read_response_limits(
                heard.status, heard.headers, heard.body, world.now_ns(), is_graphql=cost.is_graphql
            )
        finally:
            wait: RequiredWait | None = yield UpdateStep(
                partial(record_response, call=cost, permit=permit, answer=answer, now_ns=world.now_ns(), manner=policy)
            )
        if wait is None or not can_repeat:
            return partial(release_permit, permit=permit)
        tries += 1
        if tries > policy.retries_max:
            raise _given_up(answer, wait, tries)


def _turn(
    world: World,
    manner: ClientPolicy,
    call: RequestCost,
    permit: str,
    url: str,
    left_s: float | None,
    on_wait: Callable[[WaitNotice], None] | None,
) -> Generator[Step, Any, float | None]:
    """RequiredWait until the call may go. Gives back how long it may still wait."""
    yield QueueStep(True)
    try:
        while True:
            turn = yield UpdateStep(
                partial(request_permit, call=call, now_ns=world.now_ns(), manner=manner, new_permit=permit)
            )
            if isinstance(turn, GrantedPermit):
                return left_s
            wait_s = max((turn.until_ns - world.now_ns()) / 1e9, 0.001)
            if left_s is not None and wait_s > left_s:
                raise _too_long(turn, wait_s, left_s, manner)
            left_s = None if left_s is None else left_s - wait_s
            if on_wait is not None and turn.is_limit:
                on_wait(WaitNotice(url, turn.reason, turn.until_ns, wait_s))
            yield SleepStep(wait_s)
    finally:
        yield QueueStep(False)


def _too_long(wait: RequiredWait, wait_s: float, left_s: float, manner: ClientPolicy) -> LimitError:
    longest_s = manner.longest_wait_s or 0.0
    whole_s = longest_s - left_s + wait_s
    return WaitTooLong(
        f"{wait.reason}: it would wait {whole_s:.1f} s, and at most {longest_s:g} s are allowed",
        until_ns=wait.until_ns,
    )


def _given_up(answer: ResponseLimits | None, wait: RequiredWait, tries: int) -> LimitError:
    kind = PrimaryExceeded if answer is not None and answer.exceeded_kind is LimitKind.PRIMARY else SecondaryExceeded
    return kind(f"{wait.reason}, and still after {tries} tries", until_ns=wait.until_ns)
