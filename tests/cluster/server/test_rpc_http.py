"""RPC to the brain of another member over HTTP: what its replies mean to the caller."""

import asyncio

import msgspec
import pytest

from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time
from wharf.cluster.server.rpc.http import RPC_PATH, HttpPeerTransports
from wharf.cluster.server.rpc.method import PING, EmptyMessage, RpcReply
from wharf.contract.client.transport import ClientReply, ClientRequest, StreamedReply, Unreachable
from wharf.contract.model.cluster import Member
from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason
from wharf.world import RealWorld


class FixedTransport:
    """A transport that always returns the same reply or error."""

    def __init__(self, end: ClientReply | Unreachable) -> None:
        self._end = end

    async def send(self, _: ClientRequest) -> ClientReply:
        if isinstance(self._end, Unreachable):
            raise self._end
        return self._end

    async def open(self, _: ClientRequest) -> StreamedReply:
        raise AssertionError("nothing here is streamed")

    async def close(self) -> None:
        return


class FrozenBrainTransport(FixedTransport):
    """A transport to a server whose api process answers its own requests, and whose brain answers no call."""

    async def send(self, request: ClientRequest) -> ClientReply:
        if request.path.startswith(RPC_PATH):
            await pass_time(request.timeout_s)
            raise Unreachable("no reply", is_sent=True)
        return await super().send(request)


def call_member(end: ClientReply | Unreachable) -> RpcReply:
    peers = HttpPeerTransports(RealWorld(), lambda _address: FixedTransport(end))
    return asyncio.run(peers.transport_to(Member(id="m1", name="first", address="first:4646")).call("report", b""))


def make_reply(status: int, body: bytes = b"") -> ClientReply:
    return ClientReply(status, {}, body)


def test_the_reply_of_the_leader_is_returned() -> None:
    assert call_member(make_reply(200, msgspec.msgpack.encode(RpcReply(b"yes")))) == RpcReply(b"yes")


@in_virtual_time
async def test_a_call_to_a_frozen_brain_ends_within_three_seconds_although_its_api_process_answers() -> None:
    async with ACluster() as cluster:
        transport = FrozenBrainTransport(make_reply(200, b'""'))
        peers = HttpPeerTransports(cluster.world("m2"), lambda _address: transport)
        began_s = now_s()

        with pytest.raises(Refusal) as caught:
            await peers.transport_to(Member(id="m1", name="first", address="first:4646")).call("report", b"")

        assert caught.value.code is RefusalCode.OUTCOME_UNKNOWN
        assert now_s() - began_s < 3.0


@in_virtual_time
async def test_a_brain_answers_pings() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert await server.server.leader.call(PING, EmptyMessage()) == EmptyMessage()


@pytest.mark.parametrize("status", [403, 404, 413, 503])
def test_a_call_that_was_not_executed_is_unavailable(status: int) -> None:
    with pytest.raises(Refusal) as caught:
        call_member(make_reply(status))

    assert caught.value.code is RefusalCode.UNAVAILABLE


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_call_that_may_have_been_executed_has_an_unknown_outcome(status: int) -> None:
    with pytest.raises(Refusal) as caught:
        call_member(make_reply(status, b"its brain did not answer"))

    assert caught.value.code is RefusalCode.OUTCOME_UNKNOWN
    assert f"replied with status {status}: its brain did not answer" in caught.value.text


@pytest.mark.parametrize(("sent", "code"), [(True, RefusalCode.OUTCOME_UNKNOWN), (False, RefusalCode.UNAVAILABLE)])
def test_without_a_reply_the_outcome_depends_on_whether_the_call_was_sent(sent: bool, code: RefusalCode) -> None:
    with pytest.raises(Refusal) as caught:
        call_member(Unreachable("gone", is_sent=sent))

    assert caught.value.code is code


@pytest.mark.parametrize(
    "reply",
    [ClientReply(200, {}, b"\xc1"), ClientReply(500, {"x-cluster-error": "undecided"}, b"an error")],
    ids=["garbled", "undecided"],
)
def test_an_undecodable_reply_has_an_unknown_outcome(reply: ClientReply) -> None:
    with pytest.raises(Refusal) as caught:
        call_member(reply)

    assert caught.value.code is RefusalCode.OUTCOME_UNKNOWN


def test_a_member_without_a_leader_executed_nothing() -> None:
    with pytest.raises(Refusal) as caught:
        call_member(ClientReply(500, {"x-cluster-error": "no-leader"}, b"No cluster leader"))

    assert caught.value.code is RefusalCode.UNAVAILABLE


def test_a_reply_keeps_the_reason_of_its_refusal() -> None:
    sent = RpcReply(code=RefusalCode.INVALID, text="no", reason=RefusalReason.ACTIVE_DEPLOYMENT)

    assert call_member(make_reply(200, msgspec.msgpack.encode(sent))) == sent


def test_an_unknown_reason_of_a_newer_server_counts_as_unspecified() -> None:
    body = msgspec.msgpack.encode({"code": "invalid", "text": "no", "reason": "of-tomorrow"})

    assert call_member(make_reply(200, body)).reason is RefusalReason.UNSPECIFIED


def test_the_refusal_of_an_overloaded_leader_keeps_its_reason_and_the_pause_before_a_retry() -> None:
    headers = {"x-cluster-error": "unavailable", "x-cluster-error-reason": "overloaded", "retry-after": "7"}

    with pytest.raises(Refusal) as caught:
        call_member(ClientReply(503, headers, b"the server is overloaded"))

    refusal = caught.value
    assert (refusal.code, refusal.reason) == (RefusalCode.UNAVAILABLE, RefusalReason.OVERLOADED)
    assert refusal.retry_after_s == 7.0
