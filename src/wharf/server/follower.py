"""Keeps a replica at the head of the log, whatever happens to the connection."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from wharf.engines.port import Batch, Behind, Engine, Unavailable
from wharf.state import Loading, Replica
from wharf.state.formats import refuse_newer_format
from wharf.state.tables import FORMAT
from wharf.world import World

log = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.05
RETRY_MOST_S: Final = 2.0
REMEMBERED_WRITES: Final = 10_000
"""Ids of the newest writes kept to tell whether one of unknown outcome happened."""

Listener = Callable[[Batch], None]


class Follower:
    """Loads the state once, then applies every batch in order; loads again when it has fallen behind the log's tail.

    Listeners hear of every batch after it is applied, and of every load by `on_load`.
    """

    def __init__(self, world: World, engine: Engine, replica: Replica) -> None:
        self.replica = replica
        self.listeners: list[Listener] = []
        self.on_load: list[Callable[[], None]] = []
        self.loaded = asyncio.Event()
        self._world = world
        self._engine = engine
        self._writes: OrderedDict[str, int] = OrderedDict()
        self._reached: dict[int, list[asyncio.Future[None]]] = {}

    async def run(self) -> None:
        """Until cancelled. Raises `NewerFormat` when this program cannot read what the cluster writes now, `Damaged`
        when what it wrote is broken: neither gets better by trying again.
        """
        must_load = True
        pause_s = RETRY_FIRST_S
        while True:
            try:
                if must_load:
                    await self._load()
                    must_load = False
                pause_s = RETRY_FIRST_S
                await self._follow()
            except Behind as behind:
                log.info("the log's tail is gone (%s); loading the state again", behind)
                must_load = True
            except Unavailable as away:
                log.warning("the log is out of reach: %s; trying again in %.2f s", away, pause_s)
                await asyncio.sleep(pause_s * (0.5 + self._world.random.random()))
                pause_s = min(2 * pause_s, RETRY_MOST_S)

    async def _load(self) -> None:
        load = self._engine.load()
        loading = Loading(self.replica)
        async for rows in load.slices():
            loading.take(rows)
        loading.finish(await load.standing())
        refuse_newer_format(self.replica)
        self.loaded.set()
        self._tell_reached()
        for heard in self.on_load:
            heard()

    async def _follow(self) -> None:
        async for batch in self._engine.follow(self.replica.index):
            self.replica.apply(batch)
            if self.replica.last_change(FORMAT) == batch.index:
                refuse_newer_format(self.replica)
            self._writes[batch.id] = batch.index
            if len(self._writes) > REMEMBERED_WRITES:
                self._writes.popitem(last=False)
            if self._reached:
                self._tell_reached()
            for heard in self.listeners:
                heard(batch)

    async def reached(self, index: int) -> None:
        """Wait until the replica has applied everything up to `index`."""
        if self.replica.index >= index:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reached.setdefault(index, []).append(future)
        await future

    def index_of_write(self, write_id: str) -> int | None:
        """Where a write of the last while was committed; None says nothing."""
        return self._writes.get(write_id)

    def _tell_reached(self) -> None:
        for index in [index for index in self._reached if index <= self.replica.index]:
            for future in self._reached.pop(index):
                if not future.done():
                    future.set_result(None)
