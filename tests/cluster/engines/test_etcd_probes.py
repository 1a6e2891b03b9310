"""Probes of an etcd member while a write waits for its reply."""

import asyncio
import contextlib
import enum
from types import SimpleNamespace
from typing import Any

import grpc  # type: ignore[import-untyped]  # gRPC carries no types.
import pytest

from tests.kit.virtual_time import in_virtual_time, now_s, pass_time
from wharf.cluster.engines.etcd.messages import ProtobufMessage
from wharf.cluster.engines.etcd.probes import PROBE_DELAY_S, PROBE_INTERVAL_S, PROBE_TIMEOUT_S, ReplyProbes
from wharf.world import SimulatedWorld
from wharf.world.failover import FailoverAddresses

SENT_TERM = 7


class Answer(enum.Enum):
    """What a member does when it is asked for its status."""

    NONE = enum.auto()
    NONE_BUT_ANOTHER_REPLY = enum.auto()
    UNAVAILABLE = enum.auto()
    SAME_LEADER = enum.auto()
    NEW_LEADER = enum.auto()


class ScriptedMember:
    """An etcd member that answers requests for its status as listed, and then like the last time."""

    def __init__(self, *answers: Answer) -> None:
        self.position = 0
        self.raft_term = SENT_TERM
        self.members = FailoverAddresses(SimulatedWorld(1, now_s), 2)
        self.status: ProtobufMessage = self._answer
        self._answers = list(answers)

    async def _answer(self, _request: ProtobufMessage, **options: Any) -> ProtobufMessage:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is Answer.UNAVAILABLE:
            raise build_error(grpc.StatusCode.UNAVAILABLE)
        if answer in {Answer.NONE, Answer.NONE_BUT_ANOTHER_REPLY}:
            if answer is Answer.NONE_BUT_ANOTHER_REPLY:
                self.members.on_reply(self.position)
            await pass_time(options["timeout"])
            raise build_error(grpc.StatusCode.DEADLINE_EXCEEDED)
        return SimpleNamespace(raftTerm=SENT_TERM + (answer is Answer.NEW_LEADER), leader=1)


def build_error(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
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
    ("answers", "expected_s"),
    [
        ((Answer.NONE,), PROBE_DELAY_S + PROBE_TIMEOUT_S),
        ((Answer.NEW_LEADER,), PROBE_DELAY_S),
        ((Answer.SAME_LEADER, Answer.NEW_LEADER), PROBE_DELAY_S + PROBE_INTERVAL_S),
        ((Answer.NONE_BUT_ANOTHER_REPLY, Answer.NEW_LEADER), PROBE_DELAY_S + PROBE_TIMEOUT_S + PROBE_INTERVAL_S),
        ((Answer.UNAVAILABLE, Answer.NEW_LEADER), PROBE_DELAY_S + PROBE_INTERVAL_S),
    ],
    ids=["a silent member", "a new leader", "a later leader", "a slow member", "a member that refused once"],
)
def test_a_lost_write_ends_once_its_member_is_silent_or_names_another_leader(
    answers: tuple[Answer, ...], expected_s: float
) -> None:
    @in_virtual_time
    async def run_scenario() -> None:
        assert await measure_wait(ScriptedMember(*answers), 5.0) == pytest.approx(expected_s)

    run_scenario()


@in_virtual_time
async def test_a_write_waits_for_a_member_that_names_the_same_leader() -> None:
    assert await measure_wait(ScriptedMember(Answer.SAME_LEADER), 5.0) == 5.0
