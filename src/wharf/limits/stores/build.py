"""Builds the store of a limiter with its wrappers, as the settings select it, and opens and closes all of them."""

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from wharf.limits.config.settings import StoreKind, StoreSettings
from wharf.limits.core.rule import RuleSet, StoreOutagePolicy
from wharf.limits.stores.drill import DrillStore
from wharf.limits.stores.guard import GuardedStore
from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.neighbours import CounterServer, NeighbourStore
from wharf.limits.stores.port import OverrideStore, RemoteStore, Store, StoreUnavailable
from wharf.limits.stores.redis import RedisStore
from wharf.limits.stores.redis.quota_leases import QuotaLeaseStore
from wharf.world import World

log = logging.getLogger(__name__)

COUNTERS_FILE: Final = "counters"


class Openable(Protocol):
    """A part of a store stack that must be opened before use and closed after it."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...


class RemoteLayers(NamedTuple):
    """A remote store with the two wrappers that it always has."""

    store: RedisStore | NeighbourStore
    drill: DrillStore
    guard: GuardedStore


class StoreStack:
    """The store of one limiter with its wrappers, which are opened and closed together."""

    def __init__(
        self,
        store: Store,
        parts: Sequence[Openable],
        *,
        remote: RemoteLayers | None = None,
        overrides: OverrideStore | None = None,
        refusing_rule: str | None = None,
    ) -> None:
        self.store: Final = store
        """The outermost layer, which decides requests."""
        self.remote: Final = remote
        """`None` if the counters are in this process."""
        self.overrides: Final = overrides
        """Where the processes of this store share the overrides of operators; `None` if this process is alone."""
        self._parts = parts
        self._refusing_rule = refusing_rule
        self._exits = contextlib.AsyncExitStack()

    async def open(self) -> None:
        """Open all layers, the innermost first. If one fails, the opened ones are closed.

        Raises `StoreUnavailable`, `UnsuitableStore`, `InvalidSnapshot` or `OSError`.
        """
        async with contextlib.AsyncExitStack() as exits:
            if self.remote is not None:
                await self._open_remote(self.remote)
                exits.push_async_callback(self.remote.store.close)
            for part in self._parts:
                await part.open()
                exits.push_async_callback(part.close)
            self._exits = exits.pop_all()

    async def _open_remote(self, remote: RemoteLayers) -> None:
        """Connect to the remote store. If it cannot be reached, start with local decisions.

        Raises `StoreUnavailable` if Redis cannot be reached and a rule would then refuse all requests.
        """
        if isinstance(remote.store, NeighbourStore):
            if not await remote.store.open():
                log.info(
                    "counter server not reached: requests are decided by the on_store_loss of each rule socket=%s",
                    remote.store.path,
                )
                remote.guard.start_unavailable()
            return
        try:
            is_connected = await remote.store.open(can_be_unavailable=self._refusing_rule is None)
        except StoreUnavailable as error:
            raise StoreUnavailable(
                f'{error}; rule {self._refusing_rule} has on_store_loss = "closed" and would refuse all requests'
            ) from None
        if not is_connected:
            log.warning("limiter started without its store: requests are decided by the on_store_loss of each rule")
            remote.guard.start_unavailable()

    async def close(self) -> None:
        """Close all layers, the outermost first."""
        await self._exits.aclose()


def build_store(settings: StoreSettings, rules: RuleSet, world: World, *, data_folder: Path) -> StoreStack:
    """Return the store that the settings select, with its wrappers. The caller must open it."""
    if settings.kind is StoreKind.MEMORY:
        path = data_folder / COUNTERS_FILE if settings.is_saved else None
        memory = MemoryStore(world, rules, path=path, has_change_log=settings.socket is not None)
        if settings.socket is None:
            return StoreStack(memory, [memory])
        server = CounterServer(memory, settings.socket)
        return StoreStack(memory, [memory, server], overrides=server)
    parts: list[Openable] = []
    store: RedisStore | NeighbourStore
    outer: RemoteStore
    if settings.kind is StoreKind.NEIGHBOUR:
        assert settings.socket is not None, "the settings of a neighbour have a socket"
        outer = store = NeighbourStore(world, settings.socket)
    else:
        outer = store = RedisStore(world, rules, settings.redis)
        if settings.leases is not None:
            outer = leases = QuotaLeaseStore(store, world, settings.leases)
            parts.append(leases)
    drill = DrillStore(outer)
    guard = GuardedStore(drill, rules, settings.guard, world)
    parts.append(guard)
    return StoreStack(
        guard,
        parts,
        remote=RemoteLayers(store, drill, guard),
        overrides=store,
        refusing_rule=_find_refusing_rule(rules),
    )


def _find_refusing_rule(rules: RuleSet) -> str | None:
    """Return the name of a rule that refuses all requests during an outage; `None` if there is none."""
    return next(
        (
            rule.name
            for rule in rules.counted_rules
            if rule.on_store_loss is StoreOutagePolicy.CLOSED and not rule.shadow
        ),
        None,
    )
