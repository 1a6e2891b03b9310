"""RPC to a brain: methods with their message types, the encoded reply, and the ports that carry calls."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from wharf.contract.model.cluster import Member
from wharf.contract.model.refusal import RefusalCode, RefusalReason

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")


class RpcMethod(Generic[RequestT, ReplyT]):
    """An RPC method: its name and the types of its messages.

    The name is part of the protocol between servers of different versions. `is_repeatable`: whether a second call has no
    further effect, so that a new leader may be called after an old one did not reply. `received_type`: the type as which
    the handler receives the request, if it decodes parts of it itself.
    """

    def __init__(
        self,
        name: str,
        request_type: type[RequestT],
        reply_type: type[ReplyT],
        *,
        is_repeatable: bool = False,
        received_type: type[Any] | None = None,
    ) -> None:
        self.name = name
        self.is_repeatable = is_repeatable
        self.decode_request: Callable[[bytes], Any] = msgspec.msgpack.Decoder(received_type or request_type).decode
        self.decode_reply = msgspec.msgpack.Decoder(reply_type).decode


RpcRoute: TypeAlias = tuple[RpcMethod[Any, Any], Callable[[Any], Awaitable[Any]]]
"""A method and the handler for it."""


class EmptyMessage(msgspec.Struct, frozen=True):
    """A request or reply without content."""


PING: Final = RpcMethod("ping", EmptyMessage, EmptyMessage, is_repeatable=True)
"""Proves that a brain answers. A brain of an older version replies that it does not know the method, which proves it too."""


class RpcReply(msgspec.Struct, frozen=True):
    """The reply to an RPC call: an encoded message, or the parts of a `Refusal` if `code` is set."""

    body: bytes = b""
    code: RefusalCode | None = None
    text: str = ""
    reason: RefusalReason = RefusalReason.UNSPECIFIED
    retry_after_s: float | None = None


class RpcTransport(Protocol):
    """Carries calls to one brain: in this process, over a socket, or over HTTP to another member."""

    async def call(self, name: str, body: bytes) -> RpcReply:
        """Send the encoded request `body` for the method `name`, and return the reply.

        Raises `Refusal` with UNAVAILABLE if the brain cannot be reached (nothing was executed), OUTCOME_UNKNOWN if the
        reply was lost.
        """
        ...


class PeerTransports(Protocol):
    """Provides transports to the brains of other members."""

    def transport_to(self, member: Member) -> RpcTransport:
        """Return the transport to this member's brain."""
        ...
