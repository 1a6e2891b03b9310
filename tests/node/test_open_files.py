"""The open files of a node agent are shared fairly between namespaces."""

import asyncio
import errno
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from wharf.contract.model.refusal import Refusal
from wharf.contract.wire.nodes import channel
from wharf.node.channel.endpoint import ChannelEndpoint, ChannelReply
from wharf.node.channel.shares import limit_by_namespace, take_slot
from wharf.node.open_files import (
    FILES_OF_API_CONNECTION,
    FILES_OF_COMMAND,
    FILES_OF_PROBE,
    FILES_OF_STREAM,
    MAX_COMMANDS,
    FairSlots,
    divide_open_files,
)
from wharf.world import RealWorld


def take_all(slots: FairSlots, owner: str) -> int:
    """Take slots until the owner may have no more, and return their number."""
    count = 0
    while slots.try_take(owner):
        count += 1
    return count


def test_each_namespace_may_take_half_of_the_slots_that_others_leave() -> None:
    slots = FairSlots(MAX_COMMANDS)

    assert [take_all(slots, namespace) for namespace in "abcd"] == [128, 64, 32, 16]


def test_a_node_has_a_limited_number_of_commands_for_all_namespaces() -> None:
    slots = FairSlots(MAX_COMMANDS)

    assert sum(take_all(slots, f"namespace-{number}") for number in range(1_000)) == MAX_COMMANDS
    with pytest.raises(Refusal, match="0 of the node's 256 commands are of this namespace"):
        take_slot(slots, "late", "commands")


def test_a_released_slot_can_be_taken_again() -> None:
    slots = FairSlots(2)
    assert take_all(slots, "a") == 1

    slots.release("a")

    assert take_all(slots, "a") == 1


def test_waiting_callers_get_slots_in_their_order_and_the_owner_with_the_fewest_first() -> None:
    async def scenario() -> list[str]:
        slots, order = FairSlots(4), []

        async def use(owner: str, name: str) -> None:
            await slots.take(owner)
            order.append(name)

        assert take_all(slots, "a") == 2
        assert take_all(slots, "b") == 1
        tasks = [asyncio.ensure_future(use(owner, name)) for owner, name in (("a", "a1"), ("a", "a2"), ("b", "b1"))]
        await asyncio.sleep(0)
        tasks[0].cancel()
        for owner in ("b", "a"):
            slots.release(owner)
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        return order

    assert asyncio.run(scenario()) == ["b1", "a2"]


def test_a_caller_that_is_canceled_while_it_receives_a_slot_gives_it_back() -> None:
    async def scenario() -> int:
        slots = FairSlots(2)
        assert slots.try_take("a")
        waiting = asyncio.ensure_future(slots.take("a"))
        await asyncio.sleep(0)
        slots.release("a")  # Passes the slot to the waiting caller.
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return slots.count_used("a")

    assert asyncio.run(scenario()) == 0


@pytest.mark.parametrize("max_open_files", [256, 1_024, 4_096, 65_536])
def test_a_quarter_of_the_open_files_is_left_to_start_tasks_and_send_reports(max_open_files: int) -> None:
    limits = divide_open_files(max_open_files)

    used = (
        limits.commands * FILES_OF_COMMAND
        + limits.streams * FILES_OF_STREAM
        + limits.probes * FILES_OF_PROBE
        + limits.api_connections * FILES_OF_API_CONNECTION
    )
    assert used <= max_open_files * 3 / 4
    assert min(limits) >= 1


def build_request(number: int, verb: str = "fs_cat", about: str = "a1") -> channel.ChannelRequest:
    return channel.ChannelRequest(number, verb, about, {}, b"")


def test_a_reader_holds_its_slot_until_its_reply_is_sent() -> None:
    async def endless() -> AsyncGenerator[bytes, None]:
        yield b"x"

    async def handle(_: channel.ChannelRequest, __: AsyncIterator[bytes]) -> ChannelReply:
        return ChannelReply("text/plain", chunks=endless())

    async def scenario() -> list[int]:
        slots = FairSlots(8)
        handler = limit_by_namespace({"fs_cat": handle}, slots, lambda _: "team", "files and logs")["fs_cat"]
        reply = await handler(build_request(1), endless())
        counts = [slots.count_used("team")]
        assert reply.release is not None
        await reply.release()
        return [*counts, slots.count_used("team")]

    assert asyncio.run(scenario()) == [1, 0]


def test_a_refused_or_short_request_for_a_file_holds_no_slot() -> None:
    async def nothing() -> AsyncGenerator[bytes, None]:
        yield b""

    async def refuse(_: channel.ChannelRequest, __: AsyncIterator[bytes]) -> ChannelReply:
        raise OSError(errno.EMFILE, "Too many open files")

    async def reply(_: channel.ChannelRequest, __: AsyncIterator[bytes]) -> ChannelReply:
        return ChannelReply("text/plain", b"whole")

    async def scenario() -> int:
        slots = FairSlots(8)
        handlers = limit_by_namespace({"refuse": refuse, "reply": reply}, slots, lambda _: "team", "files and logs")
        with pytest.raises(OSError, match="Too many open files"):
            await handlers["refuse"](build_request(1), nothing())
        await handlers["reply"](build_request(2), nothing())
        return slots.count_used("team")

    assert asyncio.run(scenario()) == 0


def test_a_node_agent_without_open_files_says_so_and_what_to_do() -> None:
    class NoOpenFiles:
        async def handle_request(self, _: channel.ChannelRequest, __: AsyncIterator[bytes]) -> ChannelReply:
            raise OSError(errno.EMFILE, "Too many open files")

    async def scenario() -> object:
        sent: asyncio.Queue[bytes] = asyncio.Queue()
        endpoint = ChannelEndpoint(RealWorld(), NoOpenFiles(), sent.put)
        endpoint.receive_message(channel.encode_message(build_request(1)))
        return channel.decode_message_to_server(await sent.get())

    reply = asyncio.run(scenario())

    assert isinstance(reply, channel.ChannelRefusal)
    assert reply.text.startswith("the node agent cannot open more files: retry later; if this happens often, raise")
