"""The control socket in the data folder: how commands on the same machine speak to a running agent.

Only the owner of the folder can connect. One question and one answer a connection, except for whoever follows the log.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from wharf.agent.channel import Broken, Description, Inbox, ReloadAnswer, send
from wharf.agent.folder import CONTROL_SOCKET
from wharf.agent.refusal import Refused

_LONGEST_PATH: Final = 100
"""The kernel takes 107 bytes for the path of a socket."""


class DebugAsked(msgspec.Struct, frozen=True, tag=True):
    """Everything about the processes."""


class ReloadAsked(msgspec.Struct, frozen=True, tag=True):
    """What SIGHUP does, with an answer."""


class LogAsked(msgspec.Struct, frozen=True, tag=True):
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


class DebugAnswer(msgspec.Struct, frozen=True, tag=True):
    version: str
    configuration: Any  # A tree of plain values; msgspec knows no type that holds itself.
    processes: list[ProcessNews]
    agent_stacks: str
    agent_log_lines: list[str]


Answer = DebugAnswer | ReloadAnswer


def listen_for_commands(folder: Path) -> socket.socket:
    path = folder / CONTROL_SOCKET
    path.unlink(missing_ok=True)  # Of an agent that was killed; the folder is ours.
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Made without rights for anyone else from its first moment on.
    before = os.umask(0o177)
    try:
        with short_path(path) as name:
            listening.bind(name)
    finally:
        os.umask(before)
    listening.listen(8)
    return listening


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


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name of a socket that fits the kernel's bound, also in a deep folder: by way of an open folder."""
    if len(os.fsencode(path)) <= _LONGEST_PATH or not Path("/proc/self/fd").exists():
        yield str(path)
        return
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield str(path)  # There is no such folder, and so no socket: let the caller find that out.
        return
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
