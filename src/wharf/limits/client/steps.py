"""The steps of one request: wait for a permit, send, read the limits from the response, retry; and the errors of this flow.

The flow is a generator, so that it serves both blocking and asynchronous callers. A step runner executes each step and
sends the result into the generator.
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
    """A limit prevents a request. `until_ns` is the earliest time of a retry, by the clock of this machine."""

    def __init__(self, message: str, *, until_ns: int) -> None:
        super().__init__(message)
        self.until_ns = until_ns


class PrimaryExceeded(LimitError):
    """The primary limit refused the request in all tries."""


class SecondaryExceeded(LimitError):
    """A secondary limit refused the request in all tries."""


class WaitTooLong(LimitError):
    """The required wait is longer than the policy allows. The request was not sent again."""


class WaitNotice(NamedTuple):
    """The argument of `on_wait`, which is called before each wait that a limit requires."""

    url: str
    reason: str
    until_ns: int
    wait_s: float


class UpdateStep(NamedTuple):
    """Update the limit state, and send the result of the function in."""

    update: Callable[[LimitState], Any]


class SleepStep(NamedTuple):
    wait_s: float


class SendStep(NamedTuple):
    """Send the request, and send a `ReceivedResponse` in. If sending fails, throw the error in."""

    needs_body: Callable[[int], bool]


class ReceivedResponse(NamedTuple):
    status: int
    headers: Mapping[str, str]  # By lower-case names.
    body: bytes  # Empty where `needs_body` says no.


class QueueStep(NamedTuple):
    """Enter (true) or leave (false) the queue of requests that wait for the same endpoint, in order."""

    is_entering: bool


Step = UpdateStep | SleepStep | SendStep | QueueStep
# The generator returns the update to apply to the limit state after the response body was read.
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
    """Yield the steps of one request; the last response sent in is the one for the caller.

    Raises LimitError. If an error or a cancellation is thrown in, a last step returns the permit.
    """
    left_s = policy.longest_wait_s
    tries = 0
    while True:
        permit = world.new_id()
        answer: ResponseLimits | None = None
        try:
            left_s = yield from _wait_for_permit(world, policy, cost, permit, url, left_s, on_wait)
            response: ReceivedResponse = yield SendStep(partial(needs_body, is_graphql=cost.is_graphql))
            answer = read_response_limits(
                response.status, response.headers, response.body, world.now_ns(), is_graphql=cost.is_graphql
            )
        finally:
            wait: RequiredWait | None = yield UpdateStep(
                partial(record_response, call=cost, permit=permit, answer=answer, now_ns=world.now_ns(), manner=policy)
            )
        if wait is None or not can_repeat:
            return partial(release_permit, permit=permit)
        tries += 1
        if tries > policy.retries_max:
            raise _build_retries_exhausted(answer, wait, tries)


def _wait_for_permit(
    world: World,
    manner: ClientPolicy,
    call: RequestCost,
    permit: str,
    url: str,
    left_s: float | None,
    on_wait: Callable[[WaitNotice], None] | None,
) -> Generator[Step, Any, float | None]:
    """Wait until the request gets its permit. Return the remaining time that the request may wait."""
    yield QueueStep(True)
    try:
        while True:
            permit_result = yield UpdateStep(
                partial(request_permit, call=call, now_ns=world.now_ns(), manner=manner, new_permit=permit)
            )
            if isinstance(permit_result, GrantedPermit):
                return left_s
            wait_s = max((permit_result.until_ns - world.now_ns()) / 1e9, 0.001)
            if left_s is not None and wait_s > left_s:
                raise _build_wait_too_long(permit_result, wait_s, left_s, manner)
            left_s = None if left_s is None else left_s - wait_s
            if on_wait is not None and permit_result.is_limit:
                on_wait(WaitNotice(url, permit_result.reason, permit_result.until_ns, wait_s))
            yield SleepStep(wait_s)
    finally:
        yield QueueStep(False)


def _build_wait_too_long(wait: RequiredWait, wait_s: float, left_s: float, manner: ClientPolicy) -> LimitError:
    longest_s = manner.longest_wait_s or 0.0
    whole_s = longest_s - left_s + wait_s
    return WaitTooLong(
        f"{wait.reason}: it would wait {whole_s:.1f} s, and at most {longest_s:g} s are allowed",
        until_ns=wait.until_ns,
    )


def _build_retries_exhausted(answer: ResponseLimits | None, wait: RequiredWait, tries: int) -> LimitError:
    kind = PrimaryExceeded if answer is not None and answer.exceeded_kind is LimitKind.PRIMARY else SecondaryExceeded
    return kind(f"{wait.reason}, and still after {tries} tries", until_ns=wait.until_ns)
