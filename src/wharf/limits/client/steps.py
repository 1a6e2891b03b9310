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
from wharf.limits.client.responses import SECOND_NS, LimitKind, ResponseLimits, needs_body, read_response_limits
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
    """The end of the wait, by the clock of this machine."""
    wait_s: float
    """The length of the wait."""


class UpdateStep(NamedTuple):
    """A step: apply the function to the limit state, and send its result into the generator."""

    update: Callable[[LimitState], Any]


class SleepStep(NamedTuple):
    """A step: wait for this time."""

    wait_s: float


class SendStep(NamedTuple):
    """A step: send the request, and send a `ReceivedResponse` into the generator; on failure, throw the error into it."""

    needs_body: Callable[[int], bool]
    """A function that returns whether the body of a response with this status is needed."""


class ReceivedResponse(NamedTuple):
    """A response, with the parts that show what it reports about limits."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes
    """Empty if `needs_body` returned false."""


class QueueStep(NamedTuple):
    """A step: enter (true) or leave (false) the queue of requests to one endpoint, which wait for their permits in order."""

    is_entering: bool


Step = UpdateStep | SleepStep | SendStep | QueueStep
RequestSteps = Generator[Step, Any, Callable[[LimitState], None]]
"""Returns the update to apply to the limit state after the body of the response was read."""


def generate_steps(
    world: World,
    policy: ClientPolicy,
    cost: RequestCost,
    url: str,
    *,
    can_repeat: bool,
    on_wait: Callable[[WaitNotice], None] | None = None,
) -> RequestSteps:
    """Yield the steps of one request. The last response that was sent into the generator is the one for the caller.

    Raises `LimitError`. If an error or a cancellation is thrown into the generator, a last step releases the permit.
    """
    wait_budget_s = policy.longest_wait_s
    tries = 0
    while True:
        permit = world.new_id()
        limits: ResponseLimits | None = None
        try:
            wait_budget_s = yield from _wait_for_permit(world, policy, cost, permit, url, wait_budget_s, on_wait)
            response: ReceivedResponse = yield SendStep(partial(needs_body, is_graphql=cost.is_graphql))
            limits = read_response_limits(
                response.status, response.headers, response.body, world.now_ns(), is_graphql=cost.is_graphql
            )
        finally:
            wait: RequiredWait | None = yield UpdateStep(
                partial(
                    record_response, cost=cost, permit=permit, response=limits, now_ns=world.now_ns(), policy=policy
                )
            )
        if wait is None or not can_repeat:
            return partial(release_permit, permit=permit)
        tries += 1
        if tries > policy.retries_max:
            raise _build_retries_exhausted(limits, wait, tries)


def _wait_for_permit(
    world: World,
    policy: ClientPolicy,
    cost: RequestCost,
    permit: str,
    url: str,
    wait_budget_s: float | None,
    on_wait: Callable[[WaitNotice], None] | None,
) -> Generator[Step, Any, float | None]:
    """Yield steps until the request has a permit. Return the rest of the time that it may wait; `None` for no maximum.

    Raises `WaitTooLong` if the required wait is longer than that.
    """
    yield QueueStep(True)
    try:
        while True:
            permit_result = yield UpdateStep(
                partial(request_permit, cost=cost, now_ns=world.now_ns(), policy=policy, new_permit=permit)
            )
            if isinstance(permit_result, GrantedPermit):
                return wait_budget_s
            wait_s = max((permit_result.until_ns - world.now_ns()) / SECOND_NS, 0.001)
            if wait_budget_s is not None:
                if wait_s > wait_budget_s:
                    raise _build_wait_too_long(permit_result, wait_s, wait_budget_s, policy)
                wait_budget_s -= wait_s
            if on_wait is not None and permit_result.is_limit:
                on_wait(WaitNotice(url, permit_result.reason, permit_result.until_ns, wait_s))
            yield SleepStep(wait_s)
    finally:
        yield QueueStep(False)


def _build_wait_too_long(wait: RequiredWait, wait_s: float, wait_budget_s: float, policy: ClientPolicy) -> LimitError:
    """Return the error for a request that would wait longer than the policy allows."""
    max_wait_s = policy.longest_wait_s or 0.0
    total_wait_s = max_wait_s - wait_budget_s + wait_s
    return WaitTooLong(
        f"request not sent: {wait.reason}. It would wait {total_wait_s:.1f} s; longest_wait_s allows {max_wait_s:g} s",
        until_ns=wait.until_ns,
    )


def _build_retries_exhausted(limits: ResponseLimits | None, wait: RequiredWait, tries: int) -> LimitError:
    """Return the error for a request that a limit refused in all tries."""
    error_type = (
        PrimaryExceeded if limits is not None and limits.exceeded_kind is LimitKind.PRIMARY else SecondaryExceeded
    )
    return error_type(f"{wait.reason}: refused {tries} times", until_ns=wait.until_ns)
