"""What a server and a node say over the websocket that the node keeps open: many questions at once, each with a number.

A question is answered in one piece, or begun and then told in parts; one that takes input (exec) gets it in parts, too.
Parts are sent only as far as the other end has room for them, so a caller who reads slowly holds up nobody else.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from wharf.contract.model.refusal import RefusalCode

MAX_PART_BYTES: Final = 64 << 10
# How much of one answer may be on its way. Enough for the fastest log over a usual network.
WINDOW_BYTES: Final = 1 << 20
MAX_MESSAGE_BYTES: Final = 4 << 20


class ChannelRequest(msgspec.Struct, frozen=True, tag="ask"):
    id: int
    verb: str
    about: str
    parameters: Mapping[str, str | bool | int]
    body: bytes


class ChannelInput(msgspec.Struct, frozen=True, tag="input"):
    """For who asked with it: exec."""

    id: int
    data: bytes


class OutputCredit(msgspec.Struct, frozen=True, tag="room"):
    """So many bytes more may be sent."""

    id: int
    bytes: int


class CancelRequest(msgspec.Struct, frozen=True, tag="enough"):
    """Whoever asked has gone."""

    id: int


class WholeReply(msgspec.Struct, frozen=True, tag="answer"):
    """All of it."""

    id: int
    content_type: str
    body: bytes


class StreamBegin(msgspec.Struct, frozen=True, tag="begin"):
    """Parts will follow, and then an end."""

    id: int
    content_type: str


class StreamPart(msgspec.Struct, frozen=True, tag="part"):
    id: int
    data: bytes


class StreamEnd(msgspec.Struct, frozen=True, tag="end"):
    id: int


class InputCredit(msgspec.Struct, frozen=True, tag="taken"):
    """So much of the input has found its way; as much more may be sent."""

    id: int
    bytes: int


class ChannelRefusal(msgspec.Struct, frozen=True, tag="refuse"):
    """In the place of an answer, or of the rest of one."""

    id: int
    code: RefusalCode
    text: str


MessageToNode: TypeAlias = ChannelRequest | ChannelInput | OutputCredit | CancelRequest
MessageToServer: TypeAlias = WholeReply | StreamBegin | StreamPart | StreamEnd | InputCredit | ChannelRefusal

_encoder: Final = msgspec.msgpack.Encoder()
decode_message_to_node: Final = msgspec.msgpack.Decoder(MessageToNode).decode
decode_message_to_server: Final = msgspec.msgpack.Decoder(MessageToServer).decode


def encode_message(message: MessageToNode | MessageToServer) -> bytes:
    return _encoder.encode(message)
