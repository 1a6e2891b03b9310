"""The store process: owns the log file and decides the order of writes."""

import shutil
import sys

from wharf.agent.cluster_marker import refuse_lost_log, refuse_older_log
from wharf.agent.data_folder import get_store_folder
from wharf.agent.engine import describe_state_location
from wharf.agent.errors import StartupError
from wharf.agent.process_context import ProcessContext
from wharf.cluster.engines.port import LogUnavailable
from wharf.cluster.engines.settings import EngineKind
from wharf.cluster.engines.store.server import StoreProcessSettings, StoreServer
from wharf.cluster.engines.store.shared_index import open_shared_index
from wharf.world import World

_SWITCH_INTERVAL_S = 0.001
"""How often Python switches threads. Loading runs on a thread, and a commit must not wait the default 5 ms for it."""


async def run(context: ProcessContext) -> None:
    """Run the store process until it is asked to stop or the log fails."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    refuse_lost_log(context.order.settings)
    refuse_older_log(context.order.settings)
    is_volatile = context.order.settings.state.engine is EngineKind.MEMORY
    if is_volatile:
        shutil.rmtree(get_store_folder(context.order.settings), ignore_errors=True)
    world: World = context.world
    try:
        settings = StoreProcessSettings(folder=str(get_store_folder(context.order.settings)))
        server = StoreServer(settings, world, open_shared_index(context.order.index_descriptor))
        await server.start()
    except LogUnavailable as error:
        raise StartupError(str(error)) from error
    context.report_ready(state=describe_state_location(context.order.settings))
    end_tasks = [
        world.start_task(context.stopping.wait(), name="stop request"),
        world.start_task(server.store.stopped.wait(), name="end of the log"),
    ]
    try:
        await context.wait_for_first(end_tasks)
    finally:
        await server.close()
        if is_volatile and context.stopping.is_set():
            shutil.rmtree(get_store_folder(context.order.settings), ignore_errors=True)
    if not context.stopping.is_set():
        raise StartupError(server.store.stop_reason)
