"""The marker in the data folder which shows that this server has run a cluster, so that a lost log is not taken for a new one.

Only the engine SQLite has a marker: its log is in the data folder. Decision record 0145 has the reasons.
"""

import logging
import stat
from pathlib import Path
from typing import Final

from wharf.agent.data_folder import get_store_folder
from wharf.agent.errors import StartupError
from wharf.agent.identity import SERVER_ID_FILE
from wharf.cluster.engines.settings import EngineKind
from wharf.config.settings import AgentSettings
from wharf.world.durable_file import create_file_once

log = logging.getLogger(__name__)

MARKER_FILE: Final = "cluster"
LOG_FILE: Final = "log.db"
_MARKER_TEXT: Final = b"This server has run a cluster. Without its log it does not start; see docs/running.md.\n"


def refuse_lost_log(settings: AgentSettings) -> None:
    """Raise `StartupError` if this server has run a cluster and its log file is missing or empty."""
    if settings.state.engine is not EngineKind.SQLITE:
        return
    file = get_store_folder(settings) / LOG_FILE
    evidence = _list_evidence(settings)
    if evidence and not _has_content(file):
        state = "is empty" if file.exists() else "is missing"
        raise StartupError(f"the log {file} {state}, but {_describe_evidence(evidence)}: {_describe_remedy(settings)}")


def refuse_empty_log(settings: AgentSettings) -> None:
    """Raise `StartupError` if this server has run a cluster. Call it if the log has no records of a cluster."""
    marker = Path(settings.data_dir) / MARKER_FILE
    if settings.state.engine is EngineKind.SQLITE and marker.exists():
        file = get_store_folder(settings) / LOG_FILE
        raise StartupError(
            f"the log {file} has no records, but {_describe_evidence([marker])}: {_describe_remedy(settings)}"
        )


def mark_cluster(settings: AgentSettings) -> None:
    """Record that this server has run a cluster. Call it once the log has the first records."""
    marker = Path(settings.data_dir) / MARKER_FILE
    if settings.state.engine is not EngineKind.SQLITE or marker.exists():
        return
    try:
        create_file_once(marker, _MARKER_TEXT)
    except OSError as error:
        log.info("marker of the cluster not written; the next start tries again error=%s", error)


def _list_evidence(settings: AgentSettings) -> list[Path]:
    """Return the files which show that this server has run a cluster. Before the marker existed, only its id did."""
    folder = Path(settings.data_dir)
    return [file for file in (folder / MARKER_FILE, folder / SERVER_ID_FILE) if file.exists()]


def _has_content(file: Path) -> bool:
    """Return whether the file has content. Any other problem with it is found when it is opened."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return status.st_size > 0 or not stat.S_ISREG(status.st_mode)


def _describe_evidence(evidence: list[Path]) -> str:
    return f"{' and '.join(map(str, evidence))} {'shows' if len(evidence) == 1 else 'show'} that it has run a cluster"


def _describe_remedy(settings: AgentSettings) -> str:
    """Return how to go on, for the operator."""
    folder = Path(settings.data_dir)
    return (
        f"restore {get_store_folder(settings)} from a copy, or restore a snapshot with `wharf operator snapshot restore "
        f"--data-dir {folder} FILE`; to give up all jobs and begin an empty cluster, delete {folder / MARKER_FILE} and "
        f"{folder / SERVER_ID_FILE}"
    )
