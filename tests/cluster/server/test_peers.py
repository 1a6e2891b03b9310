"""The way to another member's brain: what its replies mean to the server that asked."""

import asyncio

import msgspec
import pytest

from wharf.cluster.server.rpc.http import HttpPeerTransports
from wharf.cluster.server.rpc.leader import RpcReply
from wharf.contract.client.transport import ClientReply, ClientRequest, StreamedReply, Unreachable
from wharf.contract.model.cluster import Member
from wharf.contract.model.refusal import Refusal, RefusalCode


class OneReply:
    """An exchange that always ends the same way."""

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


def ask(end: ClientReply | Unreachable) -> RpcReply:
    peers = HttpPeerTransports(lambda _address: OneReply(end))
    return asyncio.run(peers.transport_to(Member(id="m1", name="first", address="first:4646")).call("report", b""))


def a_reply(status: int, body: bytes = b"") -> ClientReply:
    return ClientReply(status, {}, body)


def test_what_the_leader_answers_comes_back() -> None:
    assert ask(a_reply(200, msgspec.msgpack.encode(RpcReply(b"yes")))) == RpcReply(b"yes")


@pytest.mark.parametrize("status", [403, 404, 413, 503])
def test_a_leader_that_did_nothing_leaves_the_caller_free_to_ask_again(status: int) -> None:
    with pytest.raises(Refusal) as refused:
        ask(a_reply(status))

    assert refused.value.code is RefusalCode.UNAVAILABLE


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_leader_whose_brain_may_have_acted_leaves_it_undecided(status: int) -> None:
    with pytest.raises(Refusal) as refused:
        ask(a_reply(status, b"its brain did not answer"))

    assert refused.value.code is RefusalCode.OUTCOME_UNKNOWN
    assert f"answered {status}: its brain did not answer" in refused.value.text


@pytest.mark.parametrize(("sent", "code"), [(True, RefusalCode.OUTCOME_UNKNOWN), (False, RefusalCode.UNAVAILABLE)])
def test_without_a_reply_it_matters_whether_the_question_was_sent(sent: bool, code: RefusalCode) -> None:
    with pytest.raises(Refusal) as refused:
        ask(Unreachable("gone", is_sent=sent))

    assert refused.value.code is code


@pytest.mark.parametrize(
    "reply",
    [ClientReply(200, {}, b"\xc1"), ClientReply(500, {"x-cluster-error": "undecided"}, b"an error")],
    ids=["garbled", "undecided"],
)
def test_an_answer_that_says_too_little_leaves_it_undecided(reply: ClientReply) -> None:
    with pytest.raises(Refusal) as refused:
        ask(reply)

    assert refused.value.code is RefusalCode.OUTCOME_UNKNOWN


def test_a_member_that_knows_no_leader_did_nothing() -> None:
    with pytest.raises(Refusal) as refused:
        ask(ClientReply(500, {"x-cluster-error": "no-leader"}, b"No cluster leader"))

    assert refused.value.code is RefusalCode.UNAVAILABLE
