"""The store process: owns the log's file and the order of batches."""

import shutil
import sys

from wharf.agent.life import CannotStart, Life
from wharf.agent.log_access import describe, store_folder
from wharf.engines.port import Unavailable
from wharf.engines.settings import EngineKind
from wharf.engines.store import StoreServer, StoreSettings
from wharf.world import World

_SWITCH_INTERVAL_S = 0.001
"""A load is read on a thread of its own; a commit must not wait the usual 5 ms for its turn."""


async def run(life: Life) -> None:
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    is_volatile = life.order.settings.state.engine is EngineKind.MEMORY
    if is_volatile:
        shutil.rmtree(store_folder(life.order.settings), ignore_errors=True)
    world: World = life.world
    try:
        server = StoreServer(StoreSettings(folder=str(store_folder(life.order.settings))), world)
        await server.start()
    except Unavailable as error:
        raise CannotStart(str(error)) from error
    life.ready(state=describe(life.order.settings))
    ends = [
        world.start(life.stopping.wait(), name="asked to stop"),
        world.start(server.hub.ended.wait(), name="end of the log"),
    ]
    try:
        await life.first_of(ends)
    finally:
        await server.close()
        if is_volatile and life.stopping.is_set():
            shutil.rmtree(store_folder(life.order.settings), ignore_errors=True)
    if not life.stopping.is_set():
        raise CannotStart(server.hub.why_ended)
