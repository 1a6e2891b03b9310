"""Messages on the websocket of a command: one JSON object per message, in both directions. An empty one is a heartbeat."""

import base64
from typing import Final, Literal

import msgspec

WEBSOCKET_REQUIRED_TEXT: Final = "commands run over a websocket: send the request with an upgrade"
"""The refusal of a request for a command that is permitted and possible, but is no websocket."""

EXITED_PREFIX: Final = b'{"exited":true'
"""The beginning of the last message to the client."""


class ExecChunk(msgspec.Struct, omit_defaults=True):
    """A part of the input or the output of a command."""

    data: str = ""
    """The bytes, encoded as base64."""
    close: bool = False  # Whether the stream ends with this chunk.


class TtySize(msgspec.Struct):
    """The size of a terminal, in rows (`height`) and columns (`width`)."""

    height: int = 0
    width: int = 0


class ExecInput(msgspec.Struct, omit_defaults=True):
    """A message from the client to a running command. Without any field it is a heartbeat."""

    stdin: ExecChunk | None = None  # Input for the command.
    tty_size: TtySize | None = None  # The new size of the client's terminal.


class ExecResult(msgspec.Struct, omit_defaults=True):
    """The result of a command that has ended."""

    exit_code: int = 0


class ExecOutput(msgspec.Struct, omit_defaults=True):
    """A message from a running command to the client."""

    stdout: ExecChunk | None = None
    stderr: ExecChunk | None = None
    exited: bool = False  # Whether the command has ended; then `result` is set.
    result: ExecResult | None = None


class ExecExit(msgspec.Struct):
    """The last message to the client: the command has ended. `exited` is always true."""

    exited: bool
    result: ExecResult


def decode_exit_code(message: bytes) -> int | None:
    """Return the exit code from the last message to the client; `None` for other messages."""
    if not message.startswith(EXITED_PREFIX):
        return None
    try:
        return msgspec.json.decode(message, type=ExecExit).result.exit_code
    except msgspec.MsgspecError:  # A node may send anything.
        return None


def encode_output(stream: Literal["stdout", "stderr"], data: bytes) -> bytes:
    """Return the JSON message with output of the command."""
    return msgspec.json.encode({stream: ExecChunk(data=base64.b64encode(data).decode())})


def encode_output_close(stream: Literal["stdout", "stderr"]) -> bytes:
    """Return the JSON message that the command has closed this output stream."""
    return msgspec.json.encode({stream: ExecChunk(close=True)})


def encode_input(data: bytes) -> bytes:
    """Return the JSON message with input for the command."""
    return msgspec.json.encode(ExecInput(stdin=ExecChunk(data=base64.b64encode(data).decode())))


def encode_input_close() -> bytes:
    """Return the JSON message that the input has ended."""
    return msgspec.json.encode(ExecInput(stdin=ExecChunk(close=True)))


def encode_terminal_size(height: int, width: int) -> bytes:
    """Return the JSON message with the terminal's new size, in rows and columns."""
    return msgspec.json.encode(ExecInput(tty_size=TtySize(height, width)))
