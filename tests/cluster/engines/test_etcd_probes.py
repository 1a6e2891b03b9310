"""Probes of an etcd member while a write waits for its reply."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import grpc  # type: ignore[import-untyped]  # gRPC carries no types.
import pytest

from tests.kit.virtual_time import in_virtual_time, now_s, pass_time
from wharf.cluster.engines.etcd.messages import ProtobufMessage
from wharf.cluster.engines.etcd.probes import PROBE_DELAY_S, PROBE_INTERVAL_S, PROBE_TIMEOUT_S, ReplyProbes
from wharf.world import SimulatedWorld
from wharf.world.failover import FailoverAddresses

SENT_TERM = 7

Step = Callable[["ScriptedMember", float], Awaitable[ProtobufMessage]]
"""Answers one request for the status of a member; it gets the timeout of the request."""


class ScriptedMember:
    """An etcd member that answers requests for its status by these steps, and then by the last one again."""

    def __init__(self, *steps: Step) -> None:
        self.position = 0
        self.raft_term = SENT_TERM
        self.members = FailoverAddresses(SimulatedWorld(1, now_s), 2)
        self._steps = list(steps)

    async def status(self, request: ProtobufMessage, *, timeout: float, metadata: object) -> ProtobufMessage:
        del request, metadata
        step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        return await step(self, timeout)


async def answer_other_request(member: ScriptedMember, timeout_s: float) -> ProtobufMessage:
    """Miss the timeout, while another request gets its reply."""
    member.members.on_reply(member.position)
    return await stay_silent(member, timeout_s)


async def stay_silent(member: ScriptedMember, timeout_s: float) -> ProtobufMessage:
    await pass_time(timeout_s)
    raise fail(grpc.StatusCode.DEADLINE_EXCEEDED)


async def be_unavailable(member: ScriptedMember, timeout_s: float) -> ProtobufMessage:
    raise fail(grpc.StatusCode.UNAVAILABLE)


async def name_new_leader(member: ScriptedMember, timeout_s: float) -> ProtobufMessage:
    return SimpleNamespace(raftTerm=SENT_TERM + 1, leader=1)


async def name_same_leader(member: ScriptedMember, timeout_s: float) -> ProtobufMessage:
    return SimpleNamespace(raftTerm=SENT_TERM, leader=1)


def fail(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())


async def measure_wait(member: ScriptedMember, timeout_s: float) -> float:
    """Return after how many seconds a write is found to be lost, or its timeout."""
    ended = asyncio.Event()
    probes = ReplyProbes(SimulatedWorld(1, now_s), member.members)
    began_s = now_s()
    with probes.end_if_lost(member, (), ended.set), contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ended.wait(), timeout_s)
    waited_s = now_s() - began_s
    await pass_time(PROBE_INTERVAL_S + PROBE_TIMEOUT_S)  # The probe notices that nothing waits for it.
    return waited_s


@pytest.mark.parametrize(
    ("steps", "expected_s"),
    [
        ((stay_silent,), PROBE_DELAY_S + PROBE_TIMEOUT_S),
        ((name_new_leader,), PROBE_DELAY_S),
        ((name_same_leader, name_new_leader), PROBE_DELAY_S + PROBE_INTERVAL_S),
        ((answer_other_request, name_new_leader), PROBE_DELAY_S + PROBE_TIMEOUT_S + PROBE_INTERVAL_S),
        ((be_unavailable, name_new_leader), PROBE_DELAY_S + PROBE_INTERVAL_S),
    ],
    ids=["a silent member", "a new leader", "a later leader", "a slow member", "a member that refused once"],
)
def test_a_lost_write_ends_once_its_member_is_silent_or_names_another_leader(
    steps: tuple[Step, ...], expected_s: float
) -> None:
    @in_virtual_time
    async def run_scenario() -> None:
        assert await measure_wait(ScriptedMember(*steps), 5.0) == pytest.approx(expected_s)

    run_scenario()


@in_virtual_time
async def test_a_write_waits_for_a_member_that_names_the_same_leader() -> None:
    assert await measure_wait(ScriptedMember(name_same_leader), 5.0) == 5.0
