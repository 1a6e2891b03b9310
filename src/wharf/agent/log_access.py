"""Which engine an agent's processes use, and commands beside it, from its settings."""

import socket
from pathlib import Path

from wharf.agent.folder import STORE_FOLDER, STORE_SOCKET
from wharf.agent.listening import short_path
from wharf.agent.refusal import Refused
from wharf.config.settings import Settings
from wharf.engines.port import Engine
from wharf.engines.settings import EngineKind, EtcdStateSettings
from wharf.world import World

VOLATILE_FOLDER = "volatile"
"""Where the log of the engine `memory` lies for as long as the agent runs."""


def store_folder(settings: Settings) -> Path:
    is_volatile = settings.state.engine is EngineKind.MEMORY
    return Path(settings.data_dir) / (VOLATILE_FOLDER if is_volatile else STORE_FOLDER)


def store_socket(settings: Settings) -> Path:
    """Where the store process listens (`engines.store.StoreSettings.socket_path`, told without loading the store)."""
    return store_folder(settings) / STORE_SOCKET


def engine_for(settings: Settings, world: World) -> Engine:
    """A door to the log for a process of a running agent, not open yet. Loads only what that engine needs."""
    if settings.state.engine is EngineKind.ETCD:
        return _etcd(settings.state.etcd, world)
    from wharf.engines.remote import RemoteEngine

    return RemoteEngine(world, store_socket(settings))


def engine_for_command(settings: Settings, world: World, *, may_be_new: bool) -> Engine:
    """A door for a command: through the running agent's store where there is one, else to the file itself.

    Raises Refused where there is nothing to open; with `may_be_new` a data folder that is missing is made.
    """
    if settings.state.engine is EngineKind.ETCD or _is_served(store_socket(settings)):
        return engine_for(settings, world)
    if settings.state.engine is EngineKind.MEMORY:
        raise Refused("the state is in the memory of an agent, and none runs here: start it, or check --config")
    if not may_be_new and not Path(settings.data_dir).is_dir():
        raise Refused(f"there is no data folder {settings.data_dir}: name the agent's with --data-dir or --config")
    from wharf.engines.sqlite import SqliteEngine

    return SqliteEngine(world, store_folder(settings))


def describe(settings: Settings) -> str:
    """For people: where the state is kept."""
    match settings.state.engine:
        case EngineKind.ETCD:
            return "etcd at " + ", ".join(settings.state.etcd.endpoints)
        case EngineKind.MEMORY:
            return "in memory, until the agent ends"
        case EngineKind.SQLITE:
            return str(store_folder(settings))


def _etcd(etcd: EtcdStateSettings, world: World) -> Engine:
    from wharf.engines.etcd import EtcdEngine
    from wharf.engines.etcd_settings import EtcdSettings, EtcdTls

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
            dial_timeout_s=etcd.dial_timeout.s,
            request_timeout_s=etcd.request_timeout.s,
        ),
        world,
    )


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, short_path(path) as name:
        try:
            probe.connect(name)
        except OSError:
            return False
    return True


def _path(text: str) -> Path | None:
    return Path(text) if text else None
