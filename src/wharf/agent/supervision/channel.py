"""Messages between the parent process and its children, over the socket that is the child's standard input.

Settings are sent here, so that no secret is on a command line or in the environment. A child notices by the end of the
stream that its parent is gone.
"""

import contextlib
import socket
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

import msgspec

from wharf.agent.logs.forwarding import ForwardedLine
from wharf.agent.logs.setup import LogConfiguration
from wharf.config.settings import AgentSettings
from wharf.world.framing import FrameDecoder, FrameTooLong, encode_frame

MAX_MESSAGE_BYTES: Final = 64_000_000
"""Protects the receiver's memory from a corrupt length."""
SIGN_OF_LIFE_INTERVAL_S: Final = 1.0
"""How often a child reports that its event loop runs. A child that hangs is noticed after a few missing reports."""


# Messages from the parent.


class ProcessOrder(msgspec.Struct, frozen=True, kw_only=True, tag="Order"):
    """The first message to a child: its role, settings and descriptors."""

    role: str
    name: str
    """The role, with a number if several processes have this role: `api-2`."""
    data_folder: str
    settings: AgentSettings
    log: LogConfiguration
    listening: int = -1
    """The descriptor of the listening HTTP socket; only for api processes."""
    index_descriptor: int = -1
    """The descriptor of the memory in which the store publishes the newest log index; only for processes that read or
    write it."""
    address: str = ""
    """The URL at which this machine reaches the HTTP port, with the port that was bound."""
    advertised_address: str = ""
    """The `host:port` at which other servers and nodes reach the HTTP port; empty for an agent without a server."""
    door_secret: str = ""
    """The secret that other servers present to this server. Created at each start, shared by its processes."""
    own_node_secret: str = ""
    """The secret with which the node of this agent registers at its own server; only for node and api processes."""


class BeginWork(msgspec.Struct, frozen=True, tag="Go"):
    """The message that lets a process begin its work, because the processes that it depends on are ready."""


class StopRequest(msgspec.Struct, frozen=True, tag="Stop"):
    """A request to finish open requests and then end."""


class NewSettings(msgspec.Struct, frozen=True, tag="NewSettings"):
    """The settings after a reload. Only settings that can change without a restart differ."""

    settings: AgentSettings
    log: LogConfiguration


class DescribeRequest(msgspec.Struct, frozen=True, tag="DescribeYourself"):
    """A request for a `ProcessDescription`. `question` is the id of the request, which the reply repeats."""

    question: int


class ReloadReply(msgspec.Struct, frozen=True, tag="ReloadAnswer"):
    """The result of a reload. `question` is the id of the request."""

    question: int
    applied: list[str] = []
    """The settings whose new values are in effect."""
    needs_restart: list[str] = []
    """The settings whose new values take effect only after a restart."""
    problem: str = ""
    """Why nothing was reloaded, or empty."""


class FollowLogRequest(msgspec.Struct, frozen=True, tag="TellLog"):
    """A request to forward log lines of this level number and above from now on; 0 stops forwarding."""

    level: int


FromParent = ProcessOrder | BeginWork | StopRequest | NewSettings | DescribeRequest | ReloadReply | FollowLogRequest


# Messages from a child.


class Ready(msgspec.Struct, frozen=True, tag="Ready"):
    """The process is ready. `details` are shown to the operator, such as its address and the location of its data."""

    details: dict[str, str] = {}


class SignOfLife(msgspec.Struct, frozen=True, tag="Alive"):
    """A message that the event loop of a child sends every `SIGN_OF_LIFE_INTERVAL_S`.

    If the loop hangs, none arrives, and the parent kills the child.
    """


class StartupFailure(msgspec.Struct, frozen=True, tag="CannotGoOn"):
    """The reason why a process cannot start, sent before it ends. `why` is one sentence: what is wrong and what to do."""

    why: str


class ProcessDescription(msgspec.Struct, frozen=True, tag="Description"):
    """The reply to `DescribeRequest`, for `wharf operator debug`."""

    question: int
    stacks: str
    log_lines: list[str]
    facts: dict[str, str]


class ReloadRequest(msgspec.Struct, frozen=True, tag="PleaseReload"):
    """A request to the parent to reload the configuration, because a client called `agent/reload` over HTTP."""

    question: int


class ForwardedLogLines(msgspec.Struct, frozen=True, tag="LogTold"):
    """Log lines, sent after a `FollowLogRequest`. `missed` counts the lines that were skipped before them."""

    lines: list[ForwardedLine]
    missed: int = 0


FromChild = Ready | SignOfLife | StartupFailure | ProcessDescription | ReloadRequest | ForwardedLogLines

M = TypeVar("M")


class UndecodableMessage(Exception):
    """The other end sent bytes that are not a valid message."""


class MessageDecoder(Generic[M]):
    """Assembles received bytes into messages. The bytes may arrive in parts of any size."""

    def __init__(self, message_type: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(message_type)
        self._frames = FrameDecoder(MAX_MESSAGE_BYTES)

    def feed(self, data: bytes) -> Iterator[M]:
        """Yield the messages that are complete with this data. Raises `UndecodableMessage`."""
        try:
            for frame in self._frames.feed(data):
                yield self._decoder.decode(frame)
        except (FrameTooLong, msgspec.MsgspecError) as error:
            raise UndecodableMessage(str(error)) from error


def send_without_waiting(channel: socket.socket, message: msgspec.Struct) -> None:
    """Send a small message without blocking. Drop it if the socket buffer is full."""
    with contextlib.suppress(BlockingIOError):
        # The kernel accepts a message this small completely or not at all.
        channel.send(encode_frame(message), socket.MSG_DONTWAIT)


def send_message(channel: socket.socket, message: msgspec.Struct) -> None:
    """Send a message. Raises `OSError` if the other end is gone, `TimeoutError` if it does not read."""
    channel.sendall(encode_frame(message))
