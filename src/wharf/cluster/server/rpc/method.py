"""One thing that may be asked of the leader's brain: its name, and the forms of question and answer."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")


class RpcMethod(Generic[RequestT, ReplyT]):
    def __init__(self, name: str, request_type: type[RequestT], reply_type: type[ReplyT]) -> None:
        self.name = name
        self.decode_request = msgspec.msgpack.Decoder(request_type).decode
        self.decode_reply = msgspec.msgpack.Decoder(reply_type).decode


RpcRoute: TypeAlias = tuple[RpcMethod[Any, Any], Callable[[Any], Awaitable[Any]]]
"""ReplyT subject with the method that answers it."""
