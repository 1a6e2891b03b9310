"""The control socket in the data folder: how commands on the same machine speak to a running agent.

Only the owner of the folder can connect. One question and one answer a connection, except for whoever follows the log.
"""

import socket
from pathlib import Path
from typing import Any

import msgspec

from wharf.agent.channel import Broken, Description, Inbox, ReloadAnswer, send
from wharf.agent.folder import CONTROL_SOCKET
from wharf.agent.listening import listen_at, short_path
from wharf.agent.refusal import Refused

"""The kernel takes 107 bytes for the path of a socket."""


class DebugAsked(msgspec.Struct, frozen=True, tag="DebugAsked"):
    """Everything about the processes."""


class ReloadAsked(msgspec.Struct, frozen=True, tag="ReloadAsked"):
    """What SIGHUP does, with an answer."""


class LogAsked(msgspec.Struct, frozen=True, tag="LogAsked"):
    """Lines of this level and above, as they are written, until the connection ends (`log_followers.LogLines`)."""

    level: int


Question = DebugAsked | ReloadAsked | LogAsked


class ProcessNews(msgspec.Struct, frozen=True):
    name: str
    pid: int
    phase: str
    restarts: int
    details: dict[str, str]
    description: Description | None
    """None when it did not answer in time."""


class DebugAnswer(msgspec.Struct, frozen=True, tag="DebugAnswer"):
    version: str
    configuration: Any  # A tree of plain values; msgspec knows no type that holds itself.
    processes: list[ProcessNews]
    agent_stacks: str
    agent_log_lines: list[str]


Answer = DebugAnswer | ReloadAnswer


def listen_for_commands(folder: Path) -> socket.socket:
    return listen_at(folder / CONTROL_SOCKET, backlog=8)


def ask(folder: Path, question: Question, *, timeout_s: float) -> Answer | None:
    """None when no agent runs on this folder. Raises Refused when one does and does not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel, short_path(folder / CONTROL_SOCKET) as name:
        channel.settimeout(timeout_s)
        try:
            channel.connect(name)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return None
        except PermissionError as error:
            raise Refused(f"not allowed to speak to the agent of {folder}: run as the user that runs it") from error
        inbox: Inbox[Answer] = Inbox(Answer)
        try:
            send(channel, question)
            while data := channel.recv(65_536):
                for answer in inbox.add(data):
                    return answer
        except (OSError, Broken) as error:
            raise Refused(f"the agent of {folder} did not answer within {timeout_s:g} s ({error})") from error
    raise Refused(f"the agent of {folder} ended before it answered")
