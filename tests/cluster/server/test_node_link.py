"""Both ends of a node's channel, joined in memory: many questions at once, streams, gone callers and broken connections."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest

from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from wharf.cluster.server.node_channels.connections import NodeConnection
from wharf.cluster.server.node_channels.port import NodeCall, NodeReply
from wharf.contract.model.refusal import Refusal, RefusalCode, not_found
from wharf.contract.wire.nodes import channel
from wharf.node.channel.endpoint import ChannelEndpoint, ChannelReply
from wharf.world import SimulatedWorld


class Node:
    """Answers by verb, and notes what is still going on."""

    def __init__(self) -> None:
        self.sent = 0
        self.open_streams = 0
        self.let_go = 0
        self.may_answer = asyncio.Event()

    async def handle_request(self, question: channel.ChannelRequest, inputs: AsyncIterator[bytes]) -> ChannelReply:
        match question.verb:
            case "echo":
                return ChannelReply("text/plain", question.about.encode() + question.body)
            case "slow":
                await self.may_answer.wait()
                return ChannelReply("text/plain", b"late")
            case "large":
                return ChannelReply("text/plain", b"x" * int(question.parameters["bytes"]))
            case "stream":
                return ChannelReply("text/plain", chunks=self._stream(int(question.parameters["parts"])))
            case "held":
                return ChannelReply("text/plain", chunks=self._stream(1), release=self._let_go)
            case "talk":
                return ChannelReply("text/plain", chunks=self._talk(inputs))
            case "deaf":
                return ChannelReply("text/plain", chunks=self._hear_later(inputs))
            case "broken":
                raise ValueError("a bug")
        raise not_found(f"no {question.verb} here")

    async def _stream(self, parts: int) -> AsyncGenerator[bytes, None]:
        self.open_streams += 1
        try:
            for number in range(parts):
                self.sent += 1
                yield str(number).encode().rjust(1_000)
                if number % 50 == 0:
                    await pass_time(0.001)
            if parts == 1:
                raise not_found("no more")
        finally:
            self.open_streams -= 1

    async def _let_go(self) -> None:
        self.let_go += 1

    async def _hear_later(self, inputs: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        yield b"begun"
        await self.may_answer.wait()
        async for said in inputs:
            yield str(len(said)).encode()

    async def _talk(self, inputs: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        async for said in inputs:
            if not said:
                return
            yield b"you said " + said


class Wire:
    """Both ends, with a connection between them that takes its time."""

    def __init__(self) -> None:
        world = SimulatedWorld(1, now_s)
        self.node = Node()
        self.link = NodeConnection(self._to_node)
        self.end = ChannelEndpoint(world, self.node, self._to_server)
        self.is_cut = False

    async def _to_node(self, data: bytes) -> None:
        await pass_time(0.001)
        if not self.is_cut:
            self.end.receive_message(data)

    async def _to_server(self, data: bytes) -> None:
        await pass_time(0.001)
        if self.is_cut:
            raise ConnectionResetError
        self.link.receive(data)

    async def ask(self, verb: str, about: str = "", body: bytes = b"", **parameters: str | int) -> NodeReply:
        return await self.link.call(NodeCall(verb, about, parameters, body))


async def whole(answer: NodeReply) -> bytes:
    return answer.body + b"".join([part async for part in answer.parts] if answer.parts is not None else [])


@in_virtual_time
async def test_an_answer_finds_who_asked() -> None:
    wire = Wire()

    answers = await asyncio.gather(*(wire.ask("echo", f"a{n}", b"!") for n in range(20)))

    assert [f"a{n}!".encode() for n in range(20)] == [answer.body for answer in answers]


@in_virtual_time
async def test_what_is_held_for_an_answer_is_let_go_though_none_of_it_can_be_sent() -> None:
    wire = Wire()
    asking = asyncio.ensure_future(wire.ask("held"))
    await pass_time(0.0015)  # The question is there, and its answer on its way.
    wire.is_cut = True

    await until(lambda: wire.node.let_go, what="it is let go")

    assert (0, 1) == (wire.node.sent, wire.node.let_go)
    wire.link.disconnect()
    await asyncio.gather(asking, return_exceptions=True)


@in_virtual_time
async def test_a_slow_answer_holds_up_no_other() -> None:
    wire = Wire()
    slow = SimulatedWorld(2, now_s).start_task(wire.ask("slow"), name="slow")

    assert b"quick" == (await wire.ask("echo", "quick")).body
    wire.node.may_answer.set()
    assert b"late" == (await slow).body


@in_virtual_time
async def test_what_the_node_refuses_is_refused_here_in_its_words() -> None:
    wire = Wire()

    with pytest.raises(Refusal, match="no such here") as refused:
        await wire.ask("such")

    assert RefusalCode.NOT_FOUND is refused.value.code


@in_virtual_time
async def test_a_fault_of_the_node_is_told_as_one() -> None:
    with pytest.raises(Refusal, match="internal error of the node; see the node's log") as refused:
        await Wire().ask("broken")

    assert RefusalCode.OUTCOME_UNKNOWN is refused.value.code


@pytest.mark.parametrize("count", [0, 1, channel.MAX_PART_BYTES, channel.MAX_PART_BYTES + 1, 3 * channel.WINDOW_BYTES])
def test_an_answer_of_any_size_arrives_whole(count: int) -> None:
    @in_virtual_time
    async def work() -> None:
        assert b"x" * count == await whole(await Wire().ask("large", bytes=count))

    work()


@in_virtual_time
async def test_a_stream_comes_in_its_order() -> None:
    said = await whole(await Wire().ask("stream", parts=3_000))

    assert list(range(3_000)) == [int(number) for number in said.split()]


@in_virtual_time
async def test_a_stream_that_ends_in_a_refusal_tells_it_after_its_parts() -> None:
    answer = await Wire().ask("stream", parts=1)
    assert answer.parts is not None

    assert b"0" == (await anext(answer.parts)).strip()
    with pytest.raises(Refusal, match="no more"):
        await anext(answer.parts)


@in_virtual_time
async def test_a_caller_who_reads_slowly_lets_the_node_wait_and_holds_up_nobody() -> None:
    wire = Wire()
    answer = await wire.ask("stream", parts=100_000)
    assert answer.parts is not None
    await anext(answer.parts)
    await pass_time(60)

    assert wire.node.sent * 1_000 < 2 * channel.WINDOW_BYTES
    assert b"x" == (await wire.ask("echo", "x")).body
    assert isinstance(answer.parts, AsyncGenerator)
    await answer.parts.aclose()


@in_virtual_time
async def test_a_caller_who_leaves_ends_what_the_node_does_for_him() -> None:
    wire = Wire()
    answer = await wire.ask("stream", parts=100_000)
    assert isinstance(answer.parts, AsyncGenerator)
    async with aclosing(answer.parts):
        await anext(answer.parts)
        assert 1 == wire.node.open_streams

    await until(lambda: wire.node.open_streams == 0, what="the end of the stream")


@in_virtual_time
async def test_a_caller_who_gives_up_waiting_is_forgotten() -> None:
    wire = Wire()
    slow = SimulatedWorld(2, now_s).start_task(wire.ask("slow"), name="slow")
    await pass_time(1)
    slow.cancel()
    await pass_time(1)
    wire.node.may_answer.set()

    assert b"x" == (await wire.ask("echo", "x")).body


@in_virtual_time
async def test_a_talk_goes_both_ways() -> None:
    talk = await Wire().link.open_stream(NodeCall("talk"))
    await talk.send(b"one")
    assert b"you said one" == await anext(talk.parts)
    await talk.send(b"two")
    assert b"you said two" == await anext(talk.parts)
    await talk.send(b"")

    assert [] == [part async for part in talk.parts]


@in_virtual_time
async def test_who_talks_faster_than_is_heard_waits() -> None:
    wire = Wire()
    talk = await wire.link.open_stream(NodeCall("deaf"))
    piece, said = b"x" * channel.MAX_PART_BYTES, 0

    async def speak() -> None:
        nonlocal said
        while True:
            await talk.send(piece)
            said += len(piece)

    speaking = asyncio.get_running_loop().create_task(speak())
    await pass_time(1)
    said_at_first = said
    wire.node.may_answer.set()
    await until(lambda: said > said_at_first, what="more is said")
    speaking.cancel()
    await asyncio.gather(speaking, return_exceptions=True)
    await wire.end.close()

    assert channel.WINDOW_BYTES == said_at_first


@in_virtual_time
async def test_all_who_wait_hear_that_the_connection_broke() -> None:
    wire = Wire()
    world = SimulatedWorld(2, now_s)
    slow = world.start_task(wire.ask("slow"), name="slow")
    answer = await wire.ask("stream", parts=100_000)
    assert answer.parts is not None
    await pass_time(1)
    wire.is_cut = True
    wire.link.disconnect()
    await wire.end.close()

    for waiting in (slow, whole(answer), wire.ask("echo")):
        with pytest.raises(Refusal, match="the node's connection was closed; retry"):
            await waiting
    assert 0 == wire.node.open_streams
