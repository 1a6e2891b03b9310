"""The identity of this agent: its name, the id of its server, and an id of its data folder. All survive restarts."""

import hashlib
import socket
from pathlib import Path
from typing import Final

from wharf.config.settings import AgentSettings
from wharf.world import World
from wharf.world.durable_file import create_file_once

SERVER_ID_FILE: Final = "server-id"


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


def load_server_id(world: World, data_folder: Path) -> str:
    """Return the server id stored in the data folder, or create it.

    If several processes create it at the same time, all return the same id.
    """
    file = data_folder / SERVER_ID_FILE
    new_id = world.new_id()
    if not file.exists():
        create_file_once(file, new_id.encode("ascii"))
    return file.read_text("ascii").strip()
