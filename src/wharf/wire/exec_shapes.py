"""What is said over the websocket of a command: one object of JSON a message, both ways. An empty one is a heartbeat."""

import base64
from typing import Literal

import msgspec


class Piece(msgspec.Struct, omit_defaults=True):
    data: str = ""
    """In base64."""
    close: bool = False


class TtySize(msgspec.Struct):
    height: int = 0
    width: int = 0


class ExecInput(msgspec.Struct, omit_defaults=True):
    """From the caller."""

    stdin: Piece | None = None
    tty_size: TtySize | None = None


class ExecResult(msgspec.Struct, omit_defaults=True):
    exit_code: int = 0


class ExecOutput(msgspec.Struct, omit_defaults=True):
    """From the command."""

    stdout: Piece | None = None
    stderr: Piece | None = None
    exited: bool = False
    result: ExecResult | None = None


class Exited(msgspec.Struct):
    exited: bool
    result: ExecResult


def output_of(stream: Literal["stdout", "stderr"], data: bytes) -> bytes:
    return msgspec.json.encode({stream: Piece(data=base64.b64encode(data).decode())})


def output_closed(stream: Literal["stdout", "stderr"]) -> bytes:
    return msgspec.json.encode({stream: Piece(close=True)})


def input_of(data: bytes) -> bytes:
    return msgspec.json.encode(ExecInput(stdin=Piece(data=base64.b64encode(data).decode())))


def input_closed() -> bytes:
    return msgspec.json.encode(ExecInput(stdin=Piece(close=True)))


def size_of(height: int, width: int) -> bytes:
    return msgspec.json.encode(ExecInput(tty_size=TtySize(height, width)))
