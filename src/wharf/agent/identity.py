"""Who this agent is: a name for people, and an id that stays the same over restarts."""

import hashlib
import os
import socket
from pathlib import Path
from typing import Final

from wharf.config.settings import AgentSettings
from wharf.world import World

SERVER_ID_FILE: Final = "server-id"


def get_agent_name(settings: AgentSettings) -> str:
    return settings.name or socket.gethostname().partition(".")[0] or "wharf"


def compute_folder_id(data_folder: Path) -> str:
    """One name for a data folder on its machine, the same at every start; that of a copy is another."""
    standing = data_folder.stat()
    machine = Path("/etc/machine-id")
    parts = (
        socket.gethostname(),
        machine.read_text("ascii", "replace").strip() if machine.is_file() else "",
        str(standing.st_dev),
        str(standing.st_ino),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def load_server_id(world: World, data_folder: Path) -> str:
    """Read from the data folder, or made and kept there. Processes that make it at the same moment agree on one."""
    file = data_folder / SERVER_ID_FILE
    made = world.new_id()
    draft = data_folder / f".{SERVER_ID_FILE}.{os.getpid()}"
    if not file.exists():
        draft.write_text(made, "ascii")
        try:
            os.link(draft, file)  # Fails where another process was first, and is never half written.
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return file.read_text("ascii").strip()
