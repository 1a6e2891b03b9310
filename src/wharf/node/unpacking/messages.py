"""The order for a process that unpacks an archive, and its reply."""

import msgspec


class UnpackOrder(msgspec.Struct, frozen=True):
    """Which archive is unpacked, and where."""

    archive: str  # its path
    archive_format: str
    name: str  # its original file name
    archive_folder: str
    """The folder of the archive that is unpacked; empty: all of it."""
    root: str
    """The path of the folder below which all files are created."""
    destination: str  # relative to the root
    owner: tuple[int, int] | None  # of the files: uid and gid
    max_bytes: int
    max_files: int
    agent_pid: int
    """The process that needs the result. Without it, the unpacking ends."""


class UnpackReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of an order."""

    file_count: int = 0
    first_path: bytes = b""
    """The first of the created files, relative to the root."""
    error: str = ""
    """Why the archive could not be unpacked; empty: it was."""
    is_permanent: bool = False
    """Whether another attempt would fail in the same way."""
