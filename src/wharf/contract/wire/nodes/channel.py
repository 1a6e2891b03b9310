"""Messages on the node channel: the websocket that a node opens to a server. Requests are numbered, and many run at once.

A request gets one whole reply or a stream of parts. A request with input (exec) sends the input in parts, too. The sender of parts
needs credit from the receiver, so that a slow caller delays no other.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from wharf.contract.model.refusal import RefusalCode, RefusalReason

MAX_PART_BYTES: Final = 64 << 10
"""Bytes of one part of a stream, so that parts of several streams alternate."""
WINDOW_BYTES: Final = 1 << 20
"""Unacknowledged bytes of one stream; enough to follow a fast log over a common network."""
MAX_MESSAGE_BYTES: Final = 4 << 20
"""Bytes of one message; limits the memory of the receiver."""


class ChannelRequest(msgspec.Struct, frozen=True, tag="ask"):
    """A request to the node. `about` is the ID of the allocation that it concerns, if any."""

    id: int
    verb: str
    about: str
    parameters: Mapping[str, str | bool | int]
    body: bytes


class ChannelInput(msgspec.Struct, frozen=True, tag="input"):
    """A part of the input of a running request (exec)."""

    id: int
    data: bytes


class OutputCredit(msgspec.Struct, frozen=True, tag="room"):
    """The node may send this many more bytes of the reply."""

    id: int
    bytes: int


class CancelRequest(msgspec.Struct, frozen=True, tag="enough"):
    """The caller has disconnected; the node should stop the request."""

    id: int


class WholeReply(msgspec.Struct, frozen=True, tag="answer"):
    """A complete reply."""

    id: int
    content_type: str
    body: bytes


class StreamBegin(msgspec.Struct, frozen=True, tag="begin"):
    """The beginning of a streamed reply: parts follow, then an end."""

    id: int
    content_type: str


class StreamPart(msgspec.Struct, frozen=True, tag="part"):
    id: int
    data: bytes


class StreamEnd(msgspec.Struct, frozen=True, tag="end"):
    id: int


class InputCredit(msgspec.Struct, frozen=True, tag="taken"):
    """The node has processed this many bytes of the input; the server may send as many more."""

    id: int
    bytes: int


class ChannelRefusal(msgspec.Struct, frozen=True, tag="refuse"):
    """The request failed. Sent in place of the reply, or of the rest of it."""

    id: int
    code: RefusalCode
    text: str
    reason: RefusalReason = RefusalReason.UNSPECIFIED


MessageToNode: TypeAlias = ChannelRequest | ChannelInput | OutputCredit | CancelRequest
MessageToServer: TypeAlias = WholeReply | StreamBegin | StreamPart | StreamEnd | InputCredit | ChannelRefusal

_encoder: Final = msgspec.msgpack.Encoder()
decode_message_to_node: Final = msgspec.msgpack.Decoder(MessageToNode).decode
decode_message_to_server: Final = msgspec.msgpack.Decoder(MessageToServer).decode


def encode_message(message: MessageToNode | MessageToServer) -> bytes:
    return _encoder.encode(message)
