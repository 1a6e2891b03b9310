"""What parent and child say to each other, over the socket that is the child's standard input.

Nothing secret is ever on a command line or in the environment: settings travel here. The end of this socket is how a
child learns that its parent is gone.
"""

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

import msgspec

from wharf.agent.logs.forwarding import ForwardedLine
from wharf.agent.logs.setup import LogConfiguration
from wharf.config.settings import AgentSettings

MAX_MESSAGE_BYTES: Final = 64_000_000
SIGN_OF_LIFE_INTERVAL_S: Final = 5.0
_LENGTH: Final = struct.Struct(">I")


# From the parent.


class ProcessOrder(msgspec.Struct, frozen=True, kw_only=True, tag="Order"):
    """The first word to a child: what it is and all that it may know."""

    role: str
    name: str
    """The role, with a number where several processes have it."""
    data_folder: str
    settings: AgentSettings
    log: LogConfiguration
    listening: int = -1
    """The descriptor of the socket that HTTP listens on; for the api only."""
    address: str = ""
    """The URL of the HTTP port, as it is really bound."""
    door_secret: str = ""
    """What other members say to be let in: made at each start, the same for all processes of this server."""
    own_node_secret: str = ""
    """What the node of this agent says to its own server to be let in; for these two only."""


class BeginWork(msgspec.Struct, frozen=True, tag="Go"):
    """Those that this one stands on are ready: begin."""


class StopRequest(msgspec.Struct, frozen=True, tag="Stop"):
    pass


class NewSettings(msgspec.Struct, frozen=True, tag="NewSettings"):
    """After a reload: what may be taken while running has changed."""

    settings: AgentSettings
    log: LogConfiguration


class DescribeRequest(msgspec.Struct, frozen=True, tag="DescribeYourself"):
    question: int


class ReloadReply(msgspec.Struct, frozen=True, tag="ReloadAnswer"):
    question: int
    applied: list[str] = []
    needs_restart: list[str] = []
    problem: str = ""


class FollowLogRequest(msgspec.Struct, frozen=True, tag="TellLog"):
    """From now on tell lines of this level and above; 0: no more."""

    level: int


FromParent = ProcessOrder | BeginWork | StopRequest | NewSettings | DescribeRequest | ReloadReply | FollowLogRequest


# From a child.


class Ready(msgspec.Struct, frozen=True, tag="Ready"):
    """`details` are for people: where it listens, where its data is, what it pretends."""

    details: dict[str, str] = {}


class SignOfLife(msgspec.Struct, frozen=True, tag="Alive"):
    """Said every `BEAT_S` by the event loop of a child, and by nothing else: one that hangs falls silent."""


class StartupFailure(msgspec.Struct, frozen=True, tag="CannotGoOn"):
    """Said before ending: one sentence on what is wrong and what to do."""

    why: str


class ProcessDescription(msgspec.Struct, frozen=True, tag="Description"):
    """The answer to DescribeYourself, for `wharf operator debug`."""

    question: int
    stacks: str
    log_lines: list[str]
    facts: dict[str, str]


class ReloadRequest(msgspec.Struct, frozen=True, tag="PleaseReload"):
    """`agent/reload` was called over HTTP."""

    question: int


class ForwardedLogLines(msgspec.Struct, frozen=True, tag="LogTold"):
    """Lines, while TellLog asks for them. `missed`: how many were left out before them."""

    lines: list[ForwardedLine]
    missed: int = 0


FromChild = Ready | SignOfLife | StartupFailure | ProcessDescription | ReloadRequest | ForwardedLogLines

M = TypeVar("M")


class UndecodableMessage(Exception):
    """The other end sent what is no message."""


class MessageDecoder(Generic[M]):
    """Bytes in whatever pieces, whole messages out."""

    def __init__(self, kind: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[M]:
        """Raises UndecodableMessage."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_MESSAGE_BYTES:
                raise UndecodableMessage(f"a message of {length} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            frame = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            try:
                yield self._decoder.decode(frame)
            except msgspec.MsgspecError as error:
                raise UndecodableMessage(str(error)) from error


def send_without_waiting(channel: socket.socket, message: msgspec.Struct) -> None:
    """As `send`, for a small message that is worth no waiting: it is left out where the other end reads nothing."""
    frame = msgspec.msgpack.encode(message)
    with contextlib.suppress(BlockingIOError):
        # The kernel takes so few bytes whole or not at all.
        channel.send(_LENGTH.pack(len(frame)) + frame, socket.MSG_DONTWAIT)


def send_message(channel: socket.socket, message: msgspec.Struct) -> None:
    """Raises OSError when the other end is gone, TimeoutError when it takes nothing in."""
    channel.sendall(frame_message(message))


def frame_message(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body
