"""Builds the log engine that the settings select, for processes of an agent and for commands."""

from pathlib import Path

from wharf.agent.cluster_marker import refuse_lost_log
from wharf.agent.data_folder import STORE_SOCKET, get_store_folder
from wharf.agent.errors import CommandError, StartupError
from wharf.cluster.engines.port import LogEngine
from wharf.cluster.engines.settings import EngineKind, EtcdStateSettings
from wharf.config.settings import AgentSettings
from wharf.world import World
from wharf.world.unix_sockets import is_listening


def get_store_socket(settings: AgentSettings) -> Path:
    """Return the path of the Unix socket of the store process.

    It is the path that `StoreProcessSettings.socket_path` returns, computed without importing the store.
    """
    return get_store_folder(settings) / STORE_SOCKET


def build_engine(settings: AgentSettings, world: World, *, index_descriptor: int = -1) -> LogEngine:
    """Return an engine for a process of a running agent, not opened yet. Imports only what that engine needs.

    `index_descriptor`: the memory in which the store publishes the newest index; -1: none.
    """
    if settings.state.engine is EngineKind.ETCD:
        return _build_etcd_engine(settings.state.etcd, world)
    from wharf.cluster.engines.store.engine import RemoteEngine
    from wharf.cluster.engines.store.shared_index import open_shared_index

    return RemoteEngine(world, get_store_socket(settings), shared_index=open_shared_index(index_descriptor))


def build_command_engine(settings: AgentSettings, world: World, *, can_create: bool) -> LogEngine:
    """Return an engine for a command: it uses the store of a running agent, or else opens the log file itself.

    Raises `CommandError` if there is no state to open. With `can_create`, a missing data folder is allowed and created.
    """
    if settings.state.engine is EngineKind.ETCD or is_listening(get_store_socket(settings)):
        return build_engine(settings, world)
    if settings.state.engine is EngineKind.MEMORY:
        raise CommandError("the state is in the memory of an agent, and none runs here: start it, or check --config")
    if not can_create and not Path(settings.data_dir).is_dir():
        raise CommandError(f"there is no data folder {settings.data_dir}: name the agent's with --data-dir or --config")
    if not can_create:
        try:
            refuse_lost_log(settings)
        except StartupError as error:
            raise CommandError(str(error)) from error
    from wharf.cluster.engines.sqlite.engine import SqliteEngine

    return SqliteEngine(world, get_store_folder(settings))


def describe_state_location(settings: AgentSettings) -> str:
    """Return where the state is stored, as text for the operator."""
    match settings.state.engine:
        case EngineKind.ETCD:
            return "etcd at " + ", ".join(settings.state.etcd.endpoints)
        case EngineKind.MEMORY:
            return "in memory, until the agent ends"
        case EngineKind.SQLITE:
            return str(get_store_folder(settings))


def _build_etcd_engine(etcd: EtcdStateSettings, world: World) -> LogEngine:
    """Return an engine for the configured etcd servers, not opened yet."""
    from wharf.cluster.engines.etcd.engine import EtcdEngine
    from wharf.cluster.engines.etcd.settings import EtcdSettings, EtcdTls

    tls = etcd.tls
    return EtcdEngine(
        EtcdSettings(
            endpoints=etcd.endpoints,
            prefix=etcd.prefix,
            tls=EtcdTls(Path(tls.ca_file), _optional_path(tls.cert_file), _optional_path(tls.key_file))
            if tls.ca_file
            else None,
            user=etcd.user,
            password=etcd.password.reveal(),
            max_txn_ops=etcd.max_txn_ops,
            max_request_bytes=etcd.max_request_size.bytes,
            quota_bytes=etcd.quota.bytes,
            dial_timeout_s=etcd.dial_timeout.seconds,
            request_timeout_s=etcd.request_timeout.seconds,
        ),
        world,
    )


def _optional_path(text: str) -> Path | None:
    return Path(text) if text else None
