"""Sends many requests in sequence and checks the reply, the state and held resources after each."""

import os
from collections import Counter
from typing import Final

import msgspec

from tests.fuzz.shots import Shot, shot
from tests.fuzz.target import Target
from tests.fuzz.wire import Answer, fire, may_have_been_heard
from wharf.contract.model.refusal import RefusalCode
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME, EndpointKind
from wharf.contract.wire.errors import CODE_HEADER

SEED: Final = int(os.environ.get("FUZZ_SEED", "1"))
IS_WHOLE_PROOF: Final = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
DECLARED: Final = frozenset((RefusalCode.NO_LEADER.value, RefusalCode.NOT_IMPLEMENTED.value))
"""Documented refusals with a 5xx status: no known leader, and unsupported endpoints."""
BEHIND: Final = b"behind requested index"
"""A stale read with an index that this server has not reached."""


class Failure(msgspec.Struct, frozen=True):
    shot: Shot
    why: str

    def told(self, port: int) -> str:
        return f"shot {self.shot.number} ({self.shot.endpoint}): {self.why}\n    {self.shot.as_command(port)}"


class Came(msgspec.Struct):
    """The result of a run."""

    statuses: Counter[int]
    failures: list[Failure]
    rows: set[str]

    def told(self, port: int) -> str:
        return "\n".join(failure.told(port) for failure in self.failures[:10])


TOLD_BY_STATUS: Final = frozenset(("agent.health",))
"""Endpoints whose status is their result: 500 means that the agent is unhealthy."""


def wrong_with(made: Shot, answer: Answer) -> str:
    """Return why the reply is not allowed, or "" if it is."""
    if answer.status < 500 or (answer.status == 500 and made.endpoint in TOLD_BY_STATUS):
        return ""
    code = answer.headers.get(CODE_HEADER, "")
    if code in DECLARED or (code == RefusalCode.UNAVAILABLE.value and BEHIND in answer.body):
        return ""
    return f"{answer.status} {code} {answer.body[:200]!r}"


def must_leave_alone(made: Shot, answer: Answer) -> bool:
    """Return whether the request must not change the state: it was refused, only reads, or was cut off."""
    is_read = (
        ENDPOINT_BY_NAME[made.endpoint].kind is EndpointKind.READ
        and made.method in ("GET", "HEAD")
        and not made.is_garbled
    )
    return answer.status >= 400 or is_read or not may_have_been_heard(made)


async def run(target: Target, *, count: int, first: int = 0, seed: int = SEED) -> Came:
    came = Came(Counter(), [], set())
    one = target.one
    for number in range(first, first + count):
        made = shot(seed, number, target.ammunition)
        one.election.again()  # A request may have ended the leadership.
        before, errors = one.engine.log.last_write_index, len(target.log.errors)
        try:
            answer = await fire(made, target.port)
            await target.is_quiet()
        except AssertionError as error:
            came.failures.append(Failure(made, str(error)))
            break
        came.statuses[answer.status] += 1
        came.rows.add(made.endpoint)
        why = wrong_with(made, answer)
        if len(target.log.errors) > errors:
            why += f"; said: {target.log.errors[errors][:1500]}"
        if target.faults:
            why += f"; a task failed: {target.faults.pop()}"
        if must_leave_alone(made, answer) and (written := await target.asked_for(before)):
            why += f"; {answer.status} {answer.body[:200]!r} changed the state: {written[0].kind} {written[0].changes}"
        if why:
            came.failures.append(Failure(made, why))
    return came
