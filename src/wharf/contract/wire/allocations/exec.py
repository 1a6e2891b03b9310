"""Messages on the websocket of a command: one JSON object per message, in both directions. An empty one is a heartbeat."""

import base64
from typing import Literal

import msgspec


class ExecChunk(msgspec.Struct, omit_defaults=True):
    data: str = ""
    """Base64."""
    close: bool = False


class TtySize(msgspec.Struct):
    height: int = 0
    width: int = 0


class ExecInput(msgspec.Struct, omit_defaults=True):
    """A message from the caller to the command."""

    stdin: ExecChunk | None = None
    tty_size: TtySize | None = None


class ExecResult(msgspec.Struct, omit_defaults=True):
    exit_code: int = 0


class ExecOutput(msgspec.Struct, omit_defaults=True):
    """A message from the command to the caller."""

    stdout: ExecChunk | None = None
    stderr: ExecChunk | None = None
    exited: bool = False
    result: ExecResult | None = None


class ExecExit(msgspec.Struct):
    """The last message: the command has ended."""

    exited: bool
    result: ExecResult


def encode_output(stream: Literal["stdout", "stderr"], data: bytes) -> bytes:
    return msgspec.json.encode({stream: ExecChunk(data=base64.b64encode(data).decode())})


def encode_output_close(stream: Literal["stdout", "stderr"]) -> bytes:
    return msgspec.json.encode({stream: ExecChunk(close=True)})


def encode_input(data: bytes) -> bytes:
    return msgspec.json.encode(ExecInput(stdin=ExecChunk(data=base64.b64encode(data).decode())))


def encode_input_close() -> bytes:
    return msgspec.json.encode(ExecInput(stdin=ExecChunk(close=True)))


def encode_terminal_size(height: int, width: int) -> bytes:
    return msgspec.json.encode(ExecInput(tty_size=TtySize(height, width)))
