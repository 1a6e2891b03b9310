"""The identity of this agent: its name, the id of its server, and an id of its data folder. All survive restarts."""

import hashlib
import re
import socket
from pathlib import Path
from typing import Final

from wharf.agent.errors import StartupError
from wharf.config.settings import AgentSettings
from wharf.world import World
from wharf.world.durable_file import create_file_once

SERVER_ID_FILE: Final = "server-id"
_SERVER_ID: Final = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def get_agent_name(settings: AgentSettings) -> str:
    """Return the configured name, or else the host name without its domain."""
    return settings.name or socket.gethostname().partition(".")[0] or "wharf"


def compute_folder_id(data_folder: Path) -> str:
    """Return an id of this data folder on this machine. It is the same at every start, and differs for a copy."""
    status = data_folder.stat()
    machine = Path("/etc/machine-id")
    parts = (
        socket.gethostname(),
        machine.read_text("ascii", "replace").strip() if machine.is_file() else "",
        str(status.st_dev),
        str(status.st_ino),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def read_server_id(data_folder: Path) -> str:
    """Return the server id stored in the data folder, or an empty text if there is none that can be read."""
    try:
        server_id = (data_folder / SERVER_ID_FILE).read_text("ascii", "replace").strip()
    except OSError:
        return ""
    return server_id if _SERVER_ID.fullmatch(server_id) else ""


def load_server_id(world: World, data_folder: Path) -> str:
    """Return the server id stored in the data folder, or create it.

    If several processes create it at the same time, all return the same id. Raises `StartupError`.
    """
    file = data_folder / SERVER_ID_FILE
    new_id = world.new_id()
    try:
        if not file.exists():
            create_file_once(file, new_id.encode("ascii"))
        server_id = file.read_text("ascii", "replace").strip()
    except OSError as error:
        raise StartupError(f"the file {file} cannot be read or written: {error.strerror}") from error
    if not _SERVER_ID.fullmatch(server_id):
        raise StartupError(
            f"the file {file} is damaged (it must contain an id such as {new_id}): restore it from a copy, or delete it; "
            "then this server joins its cluster under a new id"
        )
    return server_id
