"""The control socket in the data folder: how commands on the same machine speak to a running agent.

Only the owner of the folder can connect. One question and one answer a connection, except for whoever follows the log.
"""

import socket
from pathlib import Path
from typing import Any

import msgspec

from wharf.agent.data_folder import CONTROL_SOCKET
from wharf.agent.errors import CommandError
from wharf.agent.sockets import listen_unix, shorten_socket_path
from wharf.agent.supervision.channel import (
    MessageDecoder,
    ProcessDescription,
    ReloadReply,
    UndecodableMessage,
    send_message,
)

"""The kernel takes 107 bytes for the path of a socket."""


class DebugRequest(msgspec.Struct, frozen=True, tag="DebugAsked"):
    """Everything about the processes."""


class ControlReloadRequest(msgspec.Struct, frozen=True, tag="ReloadAsked"):
    """What SIGHUP does, with an answer."""


class ControlLogRequest(msgspec.Struct, frozen=True, tag="LogAsked"):
    """Lines of this level and above, as they are written, until the connection ends (`log_followers.LogLines`)."""

    level: int


ControlRequest = DebugRequest | ControlReloadRequest | ControlLogRequest


class ProcessReport(msgspec.Struct, frozen=True):
    name: str
    pid: int
    phase: str
    restarts: int
    details: dict[str, str]
    description: ProcessDescription | None
    """None when it did not answer in time."""


class DebugReply(msgspec.Struct, frozen=True, tag="DebugAnswer"):
    version: str
    configuration: Any  # A tree of plain values; msgspec knows no type that holds itself.
    processes: list[ProcessReport]
    agent_stacks: str
    agent_log_lines: list[str]


ControlReply = DebugReply | ReloadReply


def listen_for_commands(folder: Path) -> socket.socket:
    return listen_unix(folder / CONTROL_SOCKET, backlog=8)


def send_control_request(folder: Path, request: ControlRequest, *, timeout_s: float) -> ControlReply | None:
    """None when no agent runs on this folder. Raises CommandError when one does and does not answer."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel,
        shorten_socket_path(folder / CONTROL_SOCKET) as name,
    ):
        channel.settimeout(timeout_s)
        try:
            channel.connect(name)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return None
        except PermissionError as error:
            raise CommandError(
                f"not allowed to speak to the agent of {folder}: run as the user that runs it"
            ) from error
        inbox: MessageDecoder[ControlReply] = MessageDecoder(ControlReply)
        try:
            send_message(channel, request)
            while data := channel.recv(65_536):
                for answer in inbox.feed(data):
                    return answer
        except (OSError, UndecodableMessage) as error:
            raise CommandError(f"the agent of {folder} did not answer within {timeout_s:g} s ({error})") from error
    raise CommandError(f"the agent of {folder} ended before it answered")
