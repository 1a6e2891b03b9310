"""The control socket in the data folder: requests from commands on the same machine to a running agent.

Only the owner of the folder can connect. A connection carries one request and one reply, or one stream of log lines.
"""

import socket
from pathlib import Path
from typing import Any

import msgspec

from wharf.agent.data_folder import CONTROL_SOCKET
from wharf.agent.errors import CommandError
from wharf.agent.sockets import listen_unix
from wharf.agent.supervision.channel import (
    MessageDecoder,
    ProcessDescription,
    ReloadReply,
    UndecodableMessage,
    send_message,
)
from wharf.world.unix_sockets import shorten_socket_path


class DebugRequest(msgspec.Struct, frozen=True, tag="DebugAsked"):
    """A request for a `DebugReply`, which describes all processes."""


class ControlReloadRequest(msgspec.Struct, frozen=True, tag="ReloadAsked"):
    """A request to reload the configuration, as SIGHUP does, and to reply with the result."""


class ControlLogRequest(msgspec.Struct, frozen=True, tag="LogAsked"):
    """A request for log lines of this level number and above, as `FollowedLogLines`, until the connection ends."""

    level: int


ControlRequest = DebugRequest | ControlReloadRequest | ControlLogRequest


class ProcessReport(msgspec.Struct, frozen=True):
    """The state of one child process."""

    name: str
    pid: int
    phase: str
    restarts: int
    details: dict[str, str]
    description: ProcessDescription | None
    """`None` if the process did not reply in time."""


class DebugReply(msgspec.Struct, frozen=True, tag="DebugAnswer"):
    """The state of the agent and of all its processes, without secrets."""

    version: str
    configuration: Any  # A tree of plain values; msgspec does not support recursive types.
    processes: list[ProcessReport]
    agent_stacks: str
    agent_log_lines: list[str]


ControlReply = DebugReply | ReloadReply


def listen_for_commands(folder: Path) -> socket.socket:
    """Return the listening control socket of this data folder."""
    return listen_unix(folder / CONTROL_SOCKET, backlog=8)


def send_control_request(folder: Path, request: ControlRequest, *, timeout_s: float) -> ControlReply | None:
    """Send a request to the agent and return its reply, or `None` if no agent runs on this folder.

    Raises `CommandError` if the agent runs but does not reply.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(timeout_s)
        try:
            with shorten_socket_path(folder / CONTROL_SOCKET) as name:
                channel.connect(name)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return None
        except PermissionError as error:
            raise CommandError(
                f"not allowed to connect to the agent of {folder}: run the command as the user that runs the agent"
            ) from error
        inbox: MessageDecoder[ControlReply] = MessageDecoder(ControlReply)
        try:
            send_message(channel, request)
            while data := channel.recv(65_536):
                for reply in inbox.feed(data):
                    return reply
        except (OSError, UndecodableMessage) as error:
            raise CommandError(f"the agent of {folder} did not answer within {timeout_s:g} s ({error})") from error
    raise CommandError(f"the agent of {folder} ended before it replied")
