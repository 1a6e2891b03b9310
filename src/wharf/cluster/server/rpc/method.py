"""An RPC method of the leader's brain: its name and the types of request and reply."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")


class RpcMethod(Generic[RequestT, ReplyT]):
    """An RPC method. The name is part of the protocol between servers of different versions."""

    def __init__(self, name: str, request_type: type[RequestT], reply_type: type[ReplyT]) -> None:
        self.name = name
        self.decode_request = msgspec.msgpack.Decoder(request_type).decode
        self.decode_reply = msgspec.msgpack.Decoder(reply_type).decode


RpcRoute: TypeAlias = tuple[RpcMethod[Any, Any], Callable[[Any], Awaitable[Any]]]
"""A method and the handler for it."""
