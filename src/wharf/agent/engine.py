"""Which engine an agent's processes use, and commands beside it, from its settings."""

import socket
from pathlib import Path

from wharf.agent.data_folder import STORE_FOLDER, STORE_SOCKET
from wharf.agent.errors import CommandError
from wharf.agent.sockets import shorten_socket_path
from wharf.cluster.engines.port import LogEngine
from wharf.cluster.engines.settings import EngineKind, EtcdStateSettings
from wharf.config.settings import AgentSettings
from wharf.world import World

VOLATILE_FOLDER = "volatile"
"""Where the log of the engine `memory` lies for as long as the agent runs."""


def get_store_folder(settings: AgentSettings) -> Path:
    is_volatile = settings.state.engine is EngineKind.MEMORY
    return Path(settings.data_dir) / (VOLATILE_FOLDER if is_volatile else STORE_FOLDER)


def get_store_socket(settings: AgentSettings) -> Path:
    """Where the store process listens (`engines.store.StoreSettings.socket_path`, told without loading the store)."""
    return get_store_folder(settings) / STORE_SOCKET


def build_engine(settings: AgentSettings, world: World) -> LogEngine:
    """A door to the log for a process of a running agent, not open yet. Loads only what that engine needs."""
    if settings.state.engine is EngineKind.ETCD:
        return _etcd(settings.state.etcd, world)
    from wharf.cluster.engines.store.engine import RemoteEngine

    return RemoteEngine(world, get_store_socket(settings))


def build_command_engine(settings: AgentSettings, world: World, *, can_create: bool) -> LogEngine:
    """A door for a command: through the running agent's store where there is one, else to the file itself.

    Raises Refused where there is nothing to open; with `may_be_new` a data folder that is missing is made.
    """
    if settings.state.engine is EngineKind.ETCD or _is_served(get_store_socket(settings)):
        return build_engine(settings, world)
    if settings.state.engine is EngineKind.MEMORY:
        raise CommandError("the state is in the memory of an agent, and none runs here: start it, or check --config")
    if not can_create and not Path(settings.data_dir).is_dir():
        raise CommandError(f"there is no data folder {settings.data_dir}: name the agent's with --data-dir or --config")
    from wharf.cluster.engines.sqlite.engine import SqliteEngine

    return SqliteEngine(world, get_store_folder(settings))


def describe_state_location(settings: AgentSettings) -> str:
    """For people: where the state is kept."""
    match settings.state.engine:
        case EngineKind.ETCD:
            return "etcd at " + ", ".join(settings.state.etcd.endpoints)
        case EngineKind.MEMORY:
            return "in memory, until the agent ends"
        case EngineKind.SQLITE:
            return str(get_store_folder(settings))


def _etcd(etcd: EtcdStateSettings, world: World) -> LogEngine:
    from wharf.cluster.engines.etcd.engine import EtcdEngine
    from wharf.cluster.engines.etcd.settings import EtcdSettings, EtcdTls

    tls = etcd.tls
    return EtcdEngine(
        EtcdSettings(
            endpoints=etcd.endpoints,
            prefix=etcd.prefix,
            tls=EtcdTls(Path(tls.ca_file), _path(tls.cert_file), _path(tls.key_file)) if tls.ca_file else None,
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


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, shorten_socket_path(path) as name:
        try:
            probe.connect(name)
        except OSError:
            return False
    return True


def _path(text: str) -> Path | None:
    return Path(text) if text else None
