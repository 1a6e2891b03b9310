"""Which engine the processes of this agent use, from its order."""

from pathlib import Path

from wharf.agent.channel import Order
from wharf.agent.folder import STORE_FOLDER
from wharf.engines.port import Engine
from wharf.engines.settings import EngineKind
from wharf.engines.store import StoreSettings
from wharf.world import World

VOLATILE_FOLDER = "volatile"
"""Where the log of the engine `memory` lies for as long as the agent runs."""


def store_folder(order: Order) -> Path:
    is_volatile = order.settings.state.engine is EngineKind.MEMORY
    return Path(order.data_folder) / (VOLATILE_FOLDER if is_volatile else STORE_FOLDER)


def store_settings(order: Order) -> StoreSettings:
    return StoreSettings(folder=str(store_folder(order)))


def engine_for(order: Order, world: World) -> Engine:
    """A door to the log, not open yet. Loads only what that engine needs."""
    if order.settings.state.engine is EngineKind.ETCD:
        from wharf.engines.etcd import EtcdEngine
        from wharf.engines.etcd_settings import EtcdSettings, EtcdTls

        etcd = order.settings.state.etcd
        return EtcdEngine(
            EtcdSettings(
                endpoints=etcd.endpoints,
                prefix=etcd.prefix,
                tls=EtcdTls(Path(etcd.tls.ca_file), _path(etcd.tls.cert_file), _path(etcd.tls.key_file))
                if etcd.tls.ca_file
                else None,
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
    from wharf.engines.remote import RemoteEngine

    return RemoteEngine(world, store_settings(order).socket_path())


def where(order: Order) -> str:
    """For people: where the state is kept."""
    match order.settings.state.engine:
        case EngineKind.ETCD:
            return "etcd at " + ", ".join(order.settings.state.etcd.endpoints)
        case EngineKind.MEMORY:
            return "in memory, until the agent ends"
        case EngineKind.SQLITE:
            return str(store_folder(order))


def _path(text: str) -> Path | None:
    return Path(text) if text else None
