"""The store process: owns the log's file and the order of batches."""

import shutil
import sys

from wharf.agent.engine import describe_state_location, get_store_folder
from wharf.agent.errors import StartupError
from wharf.agent.process_context import ProcessContext
from wharf.cluster.engines.port import LogUnavailable
from wharf.cluster.engines.settings import EngineKind
from wharf.cluster.engines.store.server import StoreProcessSettings, StoreServer
from wharf.world import World

_SWITCH_INTERVAL_S = 0.001
"""A load is read on a thread of its own; a commit must not wait the usual 5 ms for its turn."""


async def run(life: ProcessContext) -> None:
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    is_volatile = life.order.settings.state.engine is EngineKind.MEMORY
    if is_volatile:
        shutil.rmtree(get_store_folder(life.order.settings), ignore_errors=True)
    world: World = life.world
    try:
        server = StoreServer(StoreProcessSettings(folder=str(get_store_folder(life.order.settings))), world)
        await server.start()
    except LogUnavailable as error:
        raise StartupError(str(error)) from error
    life.report_ready(state=describe_state_location(life.order.settings))
    ends = [
        world.start_task(life.stopping.wait(), name="asked to stop"),
        world.start_task(server.store.stopped.wait(), name="end of the log"),
    ]
    try:
        await life.wait_for_first(ends)
    finally:
        await server.close()
        if is_volatile and life.stopping.is_set():
            shutil.rmtree(get_store_folder(life.order.settings), ignore_errors=True)
    if not life.stopping.is_set():
        raise StartupError(server.store.stop_reason)
