"""Messages between the supervisor and the fork server, over a socket that keeps their boundaries."""

from typing import Final

import msgspec

MAX_REQUEST_BYTES: Final = 4_096
"""The size of the buffer for one request. The names and numbers of a request take less than 200 bytes."""
MAX_DESCRIPTORS: Final = 16
"""The most open files of one request. An api process has the most: 4."""


class ForkRequest(msgspec.Struct, frozen=True, array_like=True):
    """Supervisor to fork server: start a process. The channel to it and its open files travel with the message."""

    number: int
    """The number of the request, which the reply repeats."""
    part: str
    """The name of the process, such as `api-2`."""
    role: str
    descriptors: tuple[int, ...]
    """The numbers that the open files get in the process."""


class ForkReply(msgspec.Struct, frozen=True, array_like=True):
    """Fork server to supervisor: the process runs."""

    number: int
    pid: int
    """The process id, or 0 if the system refused to start a process."""


encode_message: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(ForkRequest).decode
decode_reply: Final = msgspec.msgpack.Decoder(ForkReply).decode
