"""The entry of every child: `python -m wharf.agent.child`, with the channel to the parent as standard input.

It takes its order, loads only what its role needs, and runs that role until it is told to stop or its parent is gone.

How many files and sockets a process may have open. Everybody who waits in a blocking query holds one.

The soft limit that processes begin with is often 1,024, for the sake of old programs; the hard one is what the
machine's owner allows, and may be taken without asking. Processes that start other people's programs keep the soft one.
"""

import asyncio
import contextlib
import faulthandler
import gc
import importlib
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import uvloop

from wharf.agent.errors import StartupError
from wharf.agent.process_context import ProcessContext

MAX_OPEN_FILES: Final = 1_048_576
"""Where the owner sets no limit, some systems still refuse a larger one."""


def raise_open_file_limit() -> None:
    """As many as the owner allows. Where even that is refused, the limit stays as it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return


ROLE_MODULE_BY_NAME: Final[Mapping[str, str]] = {
    "store": "wharf.agent.roles.store",
    "api": "wharf.agent.roles.api",
    "brain": "wharf.agent.roles.brain",
    "node": "wharf.agent.roles.node",
    "snapshot": "wharf.agent.roles.snapshot",
}
"""The module of each role. It has `async def run(life: Life) -> None`, which returns when the process should end."""

RunRole = Callable[[ProcessContext], Awaitable[None]]

log = logging.getLogger(__name__)


def main() -> int:
    # The parent speaks to us by the channel; signals of the terminal are its business.
    # Handlers that do nothing, because what is ignored would stay ignored in programs that we start.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGHUP, lambda *_: None)
    faulthandler.enable()
    with contextlib.suppress(AttributeError, ValueError):
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    life = ProcessContext(_take_channel())
    if life.order.role != "node":  # Its tasks would inherit it.
        raise_open_file_limit()
    gc.disable()  # What is imported stays: looking for garbage in it took a sixth of the start.
    role: RunRole = importlib.import_module(ROLE_MODULE_BY_NAME[life.order.role]).run
    gc.freeze()  # Nor need the collector look at it later.
    gc.enable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(life, role))
    except StartupError as error:
        life.report_failure(str(error))
        return 1
    except Exception as error:  # The top of the process.
        log.critical("ended by a fault of its own", exc_info=error)
        return 1
    return 0


def _take_channel() -> socket.socket:
    """The socket on standard input, which is then free of it: nothing else should ever read there."""
    channel = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return channel


async def _run(life: ProcessContext, role: RunRole) -> None:
    life.attach()
    with contextlib.suppress(NotImplementedError):
        # Someone may end one process by hand; the parent then starts it again.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, life.stopping.set)
    log.debug("loaded")
    beating = life.world.start_task(life.send_signs_of_life(), name="sign of life")
    if await life.wait_to_begin():
        log.debug("beginning")
        await role(life)
    log.debug("ending")
    beating.cancel()


if __name__ == "__main__":
    sys.exit(main())
