"""Limits how many requests for files and logs one namespace has open on this node, because each holds open files."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial

import msgspec

from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason
from wharf.contract.wire.nodes import channel
from wharf.node.channel.endpoint import ChannelReply, VerbHandler
from wharf.node.open_files import FairSlots


def take_slot(slots: FairSlots, namespace: str, noun: str) -> None:
    """Take a slot of this node for the namespace. Raises `Refusal` if it has as many as are free."""
    if not slots.try_take(namespace):
        owner = "this namespace" if namespace else "ended allocations"
        # At most 123 bytes: the reason with which a websocket is closed cannot be longer.
        text = (
            f"{slots.count_used(namespace)} of the node's {slots.limit} {noun} are of {owner}, the rest is for others: "
            "end some, or retry later"
        )
        raise Refusal(RefusalCode.UNAVAILABLE, text, RefusalReason.OVERLOADED)


def limit_by_namespace(
    handlers: Mapping[str, VerbHandler], slots: FairSlots, find_namespace: Callable[[str], str], noun: str
) -> dict[str, VerbHandler]:
    """Return handlers that hold a slot of the allocation's namespace until their reply is sent."""

    async def handle(
        handler: VerbHandler, request: channel.ChannelRequest, inputs: AsyncIterator[bytes]
    ) -> ChannelReply:
        namespace = find_namespace(request.about)
        take_slot(slots, namespace, noun)
        is_handed_over = False
        try:
            reply = await handler(request, inputs)
            if reply.chunks is not None:
                release = _release_after(reply.release, partial(slots.release, namespace))
                reply = msgspec.structs.replace(reply, release=release)
                is_handed_over = True
            return reply
        finally:
            if not is_handed_over:
                slots.release(namespace)

    return {verb: partial(handle, handler) for verb, handler in handlers.items()}


def _release_after(
    release: Callable[[], Awaitable[None]] | None, release_slot: Callable[[], None]
) -> Callable[[], Awaitable[None]]:
    """Return a function that releases what a reply needs, and then its slot."""

    async def release_both() -> None:
        try:
            if release is not None:
                await release()
        finally:
            release_slot()

    return release_both
