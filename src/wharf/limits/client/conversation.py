"""One request from first to last: wait until it may go, send it, hear what the answer says of limits, and so on.

A generator of steps, so that one flow serves callers that block and callers that await. Whoever drives it does what a
step says and sends the outcome in.
"""

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, NamedTuple

from wharf.limits.client.answers import Answer, Kind, needs_body, read_answer
from wharf.limits.client.errors import LimitError, PrimaryExceeded, SecondaryExceeded, WaitTooLong
from wharf.limits.client.manner import Manner
from wharf.limits.client.standing import Call, Go, Standing, Wait, admit, finish, release
from wharf.world import World


class Waiting(NamedTuple):
    """What a caller's `on_wait` is told before each wait that a limit imposes."""

    url: str
    why: str
    until_ns: int
    wait_s: float


class Change(NamedTuple):
    """Change the standing, and send in what the function gives."""

    what: Callable[[Standing], Any]


class Sleep(NamedTuple):
    wait_s: float


class Send(NamedTuple):
    """Send the request, and send in a `Heard`; where it fails, throw the error in."""

    needs_body: Callable[[int], bool]


class Heard(NamedTuple):
    status: int
    headers: Mapping[str, str]  # By lower-case names.
    body: bytes  # Empty where `needs_body` says no.


class Queue(NamedTuple):
    """Stand in line (True), or leave it (False): those who wait for the same thing wait one behind the other."""

    is_entering: bool


Step = Change | Sleep | Send | Queue
# What is sent in depends on the step. At the end: what to do to the standing once the answer's body is read, too.
Conversation = Generator[Step, Any, Callable[[Standing], None]]


def converse(
    world: World,
    manner: Manner,
    call: Call,
    url: str,
    *,
    can_repeat: bool,
    on_wait: Callable[[Waiting], None] | None = None,
) -> Conversation:
    """Ends when the last answer heard is the caller's. Raises LimitError. Errors of a step are thrown in, also the one
    that cancels it: then a few more steps give back what was taken."""
    left_s = manner.longest_wait_s
    tries = 0
    while True:
        permit = world.new_id()
        answer: Answer | None = None
        try:
            left_s = yield from _turn(world, manner, call, permit, url, left_s, on_wait)
            heard: Heard = yield Send(partial(needs_body, is_graphql=call.is_graphql))
            answer = read_answer(heard.status, heard.headers, heard.body, world.now_ns(), is_graphql=call.is_graphql)
        finally:
            wait: Wait | None = yield Change(
                partial(finish, call=call, permit=permit, answer=answer, now_ns=world.now_ns(), manner=manner)
            )
        if wait is None or not can_repeat:
            return partial(release, permit=permit)
        tries += 1
        if tries > manner.retries_max:
            raise _given_up(answer, wait, tries)


def _turn(
    world: World,
    manner: Manner,
    call: Call,
    permit: str,
    url: str,
    left_s: float | None,
    on_wait: Callable[[Waiting], None] | None,
) -> Generator[Step, Any, float | None]:
    """Wait until the call may go. Gives back how long it may still wait."""
    yield Queue(True)
    try:
        while True:
            turn = yield Change(partial(admit, call=call, now_ns=world.now_ns(), manner=manner, new_permit=permit))
            if isinstance(turn, Go):
                return left_s
            wait_s = max((turn.until_ns - world.now_ns()) / 1e9, 0.001)
            if left_s is not None and wait_s > left_s:
                raise _too_long(turn, wait_s, left_s, manner)
            left_s = None if left_s is None else left_s - wait_s
            if on_wait is not None and turn.is_limit:
                on_wait(Waiting(url, turn.why, turn.until_ns, wait_s))
            yield Sleep(wait_s)
    finally:
        yield Queue(False)


def _too_long(wait: Wait, wait_s: float, left_s: float, manner: Manner) -> LimitError:
    longest_s = manner.longest_wait_s or 0.0
    whole_s = longest_s - left_s + wait_s
    return WaitTooLong(
        f"{wait.why}: it would wait {whole_s:.1f} s, and at most {longest_s:g} s are allowed",
        until_ns=wait.until_ns,
    )


def _given_up(answer: Answer | None, wait: Wait, tries: int) -> LimitError:
    kind = PrimaryExceeded if answer is not None and answer.limited is Kind.PRIMARY else SecondaryExceeded
    return kind(f"{wait.why}, and still after {tries} tries", until_ns=wait.until_ns)
