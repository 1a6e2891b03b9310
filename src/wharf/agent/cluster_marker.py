"""The marker in the data folder: this server has run a cluster, and which one. Without it, a lost log looks like a new cluster.

An empty cluster has no tokens, so that everyone who reaches it could bootstrap its access control. Decision records 0145 and
0178 have the reasons.
"""

import logging
import re
import stat
from pathlib import Path
from typing import Final

from wharf.agent.data_folder import STORE_FOLDER, get_store_folder
from wharf.agent.errors import StartupError
from wharf.agent.identity import SERVER_ID_FILE
from wharf.cluster.engines.settings import EngineKind
from wharf.config.settings import AgentSettings
from wharf.world.durable_file import replace_file

log = logging.getLogger(__name__)

MARKER_FILE: Final = "cluster"
LOG_FILE: Final = "log.db"
MAX_MARKER_BYTES: Final = 1_000
"""Protects against reading a wrong, large file."""
_MARKER_TEXT: Final = (
    "This server has run a cluster. Without its log it does not start; see the documentation page Operating an agent.\n"
)
_ENGINE: Final = re.compile(r"^engine: ([a-z]+)$", re.MULTILINE)
_CLUSTER_ID: Final = re.compile(r"^cluster: ([0-9a-zA-Z-]+)$", re.MULTILINE)


def refuse_lost_log(settings: AgentSettings) -> None:
    """Raise `StartupError` if this server has run a cluster and this engine certainly has no log of it.

    Call it before the log is opened. The log of engine `etcd` is checked by `refuse_empty_log` when it is loaded.
    """
    match settings.state.engine:
        case EngineKind.SQLITE:
            file = get_store_folder(settings) / LOG_FILE
            if not _has_content(file):
                state = "is empty" if file.exists() else "is missing"
                _refuse_beginning(settings, f"the log {file} {state}", _list_sqlite_evidence(settings))
        case EngineKind.MEMORY:
            _refuse_beginning(settings, "the engine `memory` begins an empty cluster", _list_evidence(settings))


def refuse_older_log(settings: AgentSettings) -> None:
    """Raise `StartupError` if the log of engine `sqlite` is the one that this server had before it moved to etcd.

    Both logs have the same cluster, so that the server would continue with the old state. Markers of older versions name
    no engine and are accepted.
    """
    marker, file = _get_marker(settings), get_store_folder(settings) / LOG_FILE
    if settings.state.engine is not EngineKind.SQLITE or not _has_content(file):
        return
    found = _ENGINE.search(_read_marker(marker))
    if found is not None and found[1] == EngineKind.ETCD.value:
        raise StartupError(
            f"the log {file} is older than the cluster of this server, which {marker} shows to be in etcd: correct "
            f"state.engine, and move {file.parent} away; to give up all changes since the move to etcd, delete {marker}, or "
            "restore a snapshot with `wharf operator snapshot restore --config CONFIGURATION FILE`"
        )


def refuse_empty_log(settings: AgentSettings) -> None:
    """Raise `StartupError` if this server may not begin a cluster. Call it if the log has no records of a cluster."""
    match settings.state.engine:
        case EngineKind.SQLITE:
            problem = f"the log {get_store_folder(settings) / LOG_FILE} has no records"
            evidence = [file for file in (_get_marker(settings),) if file.exists()]
        case EngineKind.ETCD:
            etcd = settings.state.etcd
            problem = f"etcd at {', '.join(etcd.endpoints)} has no cluster under the prefix {etcd.prefix}"
            evidence = _list_evidence(settings)
        case EngineKind.MEMORY:
            problem = "the engine `memory` begins an empty cluster"
            evidence = []  # `refuse_lost_log` has checked them. A store that was killed begins an empty cluster again.
    _refuse_beginning(settings, problem, evidence)


def refuse_other_cluster(settings: AgentSettings, cluster_id: str) -> None:
    """Raise `StartupError` if the cluster in the log is not the one that this server belongs to.

    Clusters and markers of older versions have no id, which is stored empty; they are accepted.
    """
    marker = _get_marker(settings)
    own_id = _read_cluster_id(marker)
    if not own_id or not cluster_id or own_id == cluster_id:
        return
    raise StartupError(
        f"the log has the cluster {cluster_id}, but {marker} shows that this server belongs to the cluster {own_id}: "
        f"correct state.engine and {_list_location_settings(settings)}; to join the other cluster, delete {marker}"
    )


def mark_cluster(settings: AgentSettings, cluster_id: str) -> None:
    """Record that this server runs this cluster, and with which engine.

    Call it when the log has the first records, and when the id changes.
    """
    marker = _get_marker(settings)
    text = f"{_MARKER_TEXT}engine: {settings.state.engine.value}\n" + (f"cluster: {cluster_id}\n" if cluster_id else "")
    if settings.state.engine is EngineKind.MEMORY or (marker.exists() and _read_marker(marker) == text):
        return
    try:
        replace_file(marker, text.encode())
    except OSError as error:
        log.info("marker of the cluster not written; the next start tries again error=%s", error)


def accept_restored_cluster(settings: AgentSettings) -> None:
    """Let the server of this data folder accept whichever cluster its log has, because a snapshot was restored into it."""
    if _get_marker(settings).exists():
        mark_cluster(settings, "")


def _refuse_beginning(settings: AgentSettings, problem: str, evidence: list[Path]) -> None:
    """Raise `StartupError` if there is evidence that this server has run a cluster, or it may not begin one anyway."""
    if evidence:
        verb = "shows" if len(evidence) == 1 else "show"
        reason = f"{' and '.join(map(str, evidence))} {verb} that this server has run a cluster"
    elif not settings.server.begin_cluster:
        reason = "server.begin_cluster is false"
    else:
        return
    raise StartupError(
        f"{problem}, but {reason}: {_describe_remedy(settings)}; to give up all jobs, variables, policies and tokens and "
        f"begin an empty cluster, {_describe_permission(settings, evidence)}"
    )


def _describe_remedy(settings: AgentSettings) -> str:
    """Return how the server gets its cluster back."""
    folder, locations = Path(settings.data_dir), _list_location_settings(settings)
    match settings.state.engine:
        case EngineKind.SQLITE:
            return (
                f"if the state is elsewhere, correct state.engine or {locations}; if it is lost, restore "
                f"{folder / STORE_FOLDER} from a copy, or restore a snapshot with `wharf operator snapshot restore "
                f"--data-dir {folder} FILE`"
            )
        case EngineKind.ETCD:
            return (
                f"if the state is elsewhere, correct state.engine, {locations}; if it is lost, or is to move to this etcd, "
                "restore a snapshot with `wharf operator snapshot restore --config CONFIGURATION FILE`"
            )
        case EngineKind.MEMORY:
            return f"correct state.engine, or choose another {locations}"


def _describe_permission(settings: AgentSettings, evidence: list[Path]) -> str:
    """Return what the operator changes in order to begin an empty cluster on purpose."""
    log_file = Path(settings.data_dir) / STORE_FOLDER / LOG_FILE
    steps = [f"delete {file}" for file in evidence if file != log_file]
    steps += [f"move {file.parent} away" for file in evidence if file == log_file]
    steps += [] if settings.server.begin_cluster else ["set server.begin_cluster = true"]
    return " and ".join(steps)


def _list_location_settings(settings: AgentSettings) -> str:
    """Return the settings that select the log, as a list in a sentence."""
    return "state.etcd.endpoints or state.etcd.prefix" if settings.state.engine is EngineKind.ETCD else "data_dir"


def _get_marker(settings: AgentSettings) -> Path:
    return Path(settings.data_dir) / MARKER_FILE


def _list_sqlite_evidence(settings: AgentSettings) -> list[Path]:
    """Return the files which show that this server has run a cluster. Before the marker existed, only its id did.

    A server with engine `sqlite` writes its id after the log, so that the id without the log shows that the log is lost.
    """
    return [file for file in (_get_marker(settings), Path(settings.data_dir) / SERVER_ID_FILE) if file.exists()]


def _list_evidence(settings: AgentSettings) -> list[Path]:
    """Return the files which show, to an engine other than `sqlite`, that this server has run a cluster.

    A server with engine `etcd` writes its id before it reaches etcd, so the id shows nothing.
    """
    evidence = [file for file in (_get_marker(settings),) if file.exists()]
    log_file = Path(settings.data_dir) / STORE_FOLDER / LOG_FILE
    return [*evidence, log_file] if _has_content(log_file) else evidence


def _read_cluster_id(marker: Path) -> str:
    """Return the id of the cluster that the marker names, or an empty text if it names none or cannot be read."""
    found = _CLUSTER_ID.search(_read_marker(marker))
    return found[1] if found else ""


def _read_marker(marker: Path) -> str:
    """Return the text of the marker, or an empty text if it cannot be read."""
    try:
        with marker.open("rb") as file:
            return file.read(MAX_MARKER_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _has_content(file: Path) -> bool:
    """Return whether the file has content. Any other problem with it is found when it is opened."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return status.st_size > 0 or not stat.S_ISREG(status.st_mode)
