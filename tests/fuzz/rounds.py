"""Sends many requests in sequence and checks the reply, the state and held resources after each."""

import asyncio
import os
from collections import Counter
from typing import Final

import msgspec

from tests.attempts import is_cpu_limit_kept
from tests.bounded_work.measured_loop import MeasuredLoop, get_children_cpu_s
from tests.fuzz.generated_requests import FuzzRequest, build_request
from tests.fuzz.target import Target
from tests.fuzz.wire import Answer, may_have_been_read, send_request
from wharf.contract.model.refusal import RefusalCode
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME, EndpointKind
from wharf.contract.wire.errors import CODE_HEADER

SEED: Final = int(os.environ.get("FUZZ_SEED", "1"))
IS_FULL_RUN: Final = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
FULL_REQUEST_COUNT: Final = int(os.environ.get("FUZZ_REQUESTS", "100000"))
"""Requests of a full run: `make fuzz REQUESTS=1000000`."""
MAX_REQUEST_CPU_S: Final = 1.0
"""The CPU time of one request on the loop and in workers: the default of `api.max_request_cpu`."""
MAX_ERROR_CHARS: Final = 16_000
"""The longest error: 20 problems of at most 600 characters, and what is around them. A character may have several bytes."""
DOCUMENTED_CODES: Final = frozenset((RefusalCode.NO_LEADER.value, RefusalCode.NOT_IMPLEMENTED.value))
"""Documented refusals with a 5xx status: no known leader, and unsupported endpoints."""
STALE_READ_TEXT: Final = b"behind requested index"
"""A stale read with an index that this server has not reached."""


class Failure(msgspec.Struct, frozen=True):
    """A request that violated a rule of this test."""

    request: FuzzRequest
    problem: str

    def describe(self, port: int) -> str:
        return f"request {self.request.number} ({self.request.endpoint}): {self.problem}\n    {self.request.as_command(port)}"


class RunResult(msgspec.Struct):
    """The result of a run."""

    statuses: Counter[int]
    failures: list[Failure]
    rows: set[str]
    longest_hold: tuple[float, str] = (0.0, "")
    """The longest time for which a request held the event loop, in CPU seconds, and its endpoint."""
    most_cpu: tuple[float, str] = (0.0, "")
    """The largest CPU time of a request, and its endpoint."""

    def describe_costs(self) -> str:
        return (
            f"longest hold of the loop {self.longest_hold[0] * 1_000:.1f} ms ({self.longest_hold[1]}), "
            f"most CPU time {self.most_cpu[0] * 1_000:.1f} ms ({self.most_cpu[1]})"
        )

    def describe(self, port: int) -> str:
        return "\n".join(failure.describe(port) for failure in self.failures[:10])


DOCUMENT_STATUSES: Final = {
    "agent.health": 500,  # Unhealthy.
    "operator.health": 429,  # Unhealthy.
    "variable.put": 409,  # The stored variable, whose index is not the expected one.
    "variable.delete": 409,
}
"""Endpoints with a status from 400 on whose body is a document and no error text: with `?pretty` it ends with a newline."""


def find_problem(request: FuzzRequest, answer: Answer) -> str:
    """Return why the reply is not allowed, or "" if it is."""
    if DOCUMENT_STATUSES.get(request.endpoint) == answer.status and is_document(answer.body):
        return ""
    text = answer.body.decode(errors="replace") if answer.status >= 400 else ""
    if text.endswith("\n") or len(text) > MAX_ERROR_CHARS:
        return f"{answer.status} with {len(text)} characters that end with {text[-30:]!r}"
    if answer.status < 500:
        return ""
    code = answer.headers.get(CODE_HEADER, "")
    if code in DOCUMENTED_CODES or (code == RefusalCode.UNAVAILABLE.value and STALE_READ_TEXT in answer.body):
        return ""
    return f"{answer.status} {code} {answer.body[:200]!r}"


def is_document(body: bytes) -> bool:
    """Return whether a body is a JSON object. It may end with a newline, which an error may not."""
    try:
        return isinstance(msgspec.json.decode(body), dict)
    except msgspec.DecodeError:
        return False


def must_not_change_state(request: FuzzRequest, answer: Answer) -> bool:
    """Return whether the request must not change the state: it was refused, only reads, or was cut off."""
    is_read = (
        ENDPOINT_BY_NAME[request.endpoint].kind is EndpointKind.READ
        and request.method in ("GET", "HEAD")
        and not request.is_garbled
    )
    return answer.status >= 400 or is_read or not may_have_been_read(request)


async def run(target: Target, *, count: int, first: int = 0, seed: int = SEED) -> RunResult:
    """Send `count` requests from number `first` on. A request that blocks the server ends the run."""
    result = RunResult(Counter(), [], set())
    server = target.server
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MeasuredLoop)
    for number in range(first, first + count):
        request = build_request(seed, number, target.material)
        server.election.allow_campaign()  # A request may have ended the leadership.
        before, error_count = server.engine.log.last_write_index, len(target.log.errors)
        loop.begin()
        workers_before_s = get_children_cpu_s()
        try:
            answer = await send_request(request, target.port)
            await target.is_quiet()
        except AssertionError as error:
            result.failures.append(Failure(request, str(error)))
            break
        result.statuses[answer.status] += 1
        result.rows.add(request.endpoint)
        problem = find_problem(request, answer)
        cpu_s = loop.measurement.total_s + get_children_cpu_s() - workers_before_s
        result.longest_hold = max(result.longest_hold, (loop.measurement.longest_hold_s, request.endpoint))
        result.most_cpu = max(result.most_cpu, (cpu_s, request.endpoint))
        if not is_cpu_limit_kept(cpu_s, MAX_REQUEST_CPU_S):
            problem += f"; used {cpu_s:.3f} s of CPU time, {loop.measurement.holder}"
        if len(target.log.errors) > error_count:
            problem += f"; logged: {target.log.errors[error_count][:1500]}"
        if target.faults:
            problem += f"; a task failed: {target.faults.pop()}"
        if must_not_change_state(request, answer) and (written := await target.list_requested_writes(before)):
            problem += (
                f"; {answer.status} {answer.body[:200]!r} changed the state: {written[0].kind} {written[0].changes}"
            )
        if problem:
            result.failures.append(Failure(request, problem))
    return result
