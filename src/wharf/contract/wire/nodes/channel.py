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
"""Bytes of one stream that may be sent without credit; enough to follow a fast log over a common network."""
EXEC_WINDOW_BYTES: Final = 256 << 10
"""The same for the input and for the output of a command. Smaller, because programs and callers may not read for hours."""
MAX_INPUTS_IN_FLIGHT: Final = 128
"""Messages of input that may be sent without credit. Limits the memory for many short ones, each of which takes more memory
than it counts bytes. Servers before this limit sent up to a million bytes in messages of any size."""
MAX_MESSAGE_BYTES: Final = 4 << 20
"""Bytes of one message; limits the memory of the receiver."""


class ChannelRequest(msgspec.Struct, frozen=True, tag="ask"):
    """A request of a server to a node."""

    id: int  # Number of the request on this connection; all messages about it repeat it.
    verb: str  # The operation, such as `exec` or `stats`.
    about: str  # ID of the allocation that it concerns, or empty.
    parameters: Mapping[str, str | bool | int]  # Query parameters by name.
    body: bytes


class ChannelInput(msgspec.Struct, frozen=True, tag="input"):
    """A part of the input of a running request, such as the input of a command."""

    id: int  # Number of the request on this connection.
    data: bytes


class OutputCredit(msgspec.Struct, frozen=True, tag="room"):
    """A message that allows the node to send more bytes of a streamed reply (flow control)."""

    id: int  # Number of the request on this connection.
    bytes: int  # How many more bytes the node may send.


class CancelRequest(msgspec.Struct, frozen=True, tag="enough"):
    """A request to the node to stop a request, because the client has disconnected."""

    id: int  # Number of the request on this connection.


class WholeReply(msgspec.Struct, frozen=True, tag="answer"):
    """A reply of a node in a single message."""

    id: int  # Number of the request on this connection.
    content_type: str
    body: bytes


class StreamBegin(msgspec.Struct, frozen=True, tag="begin"):
    """The first message of a streamed reply. `StreamPart` messages follow, then a `StreamEnd`."""

    id: int  # Number of the request on this connection.
    content_type: str


class StreamPart(msgspec.Struct, frozen=True, tag="part"):
    """A part of a streamed reply."""

    id: int  # Number of the request on this connection.
    data: bytes


class StreamEnd(msgspec.Struct, frozen=True, tag="end"):
    """The last message of a streamed reply."""

    id: int  # Number of the request on this connection.


class InputCredit(msgspec.Struct, frozen=True, tag="taken"):
    """A message that allows the server to send more input of a request (flow control)."""

    id: int  # Number of the request on this connection.
    bytes: int  # How many bytes the node has processed; the server may send as many more.


class ChannelRefusal(msgspec.Struct, frozen=True, tag="refuse"):
    """An error that replaces the reply to a request, or the rest of a streamed reply."""

    id: int  # Number of the request on this connection.
    code: RefusalCode
    text: str  # The error message.
    reason: RefusalReason = RefusalReason.UNSPECIFIED


MessageToNode: TypeAlias = ChannelRequest | ChannelInput | OutputCredit | CancelRequest
MessageToServer: TypeAlias = WholeReply | StreamBegin | StreamPart | StreamEnd | InputCredit | ChannelRefusal

_encoder: Final = msgspec.msgpack.Encoder()
decode_message_to_node: Final = msgspec.msgpack.Decoder(MessageToNode).decode
decode_message_to_server: Final = msgspec.msgpack.Decoder(MessageToServer).decode


def encode_message(message: MessageToNode | MessageToServer) -> bytes:
    """Return the message as msgpack, with its type as a tag."""
    return _encoder.encode(message)
