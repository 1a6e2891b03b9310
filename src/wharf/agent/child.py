"""The entry point of every child process, with the channel to the parent as standard input.

It is called by the fork server, or runs as `python -m wharf.agent.child`. It reads its order, imports only the module of
its role, and runs the role until the parent stops it or is gone.
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
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import uvloop

from wharf.agent.errors import StartupError
from wharf.agent.process_context import ProcessContext
from wharf.world.descriptors import allow_many_open_files, close_on_exec
from wharf.world.process_exit import exit_process

MODULE: Final = "wharf.agent.child"
MAX_OPEN_FILES: Final = 1_048_576
"""The limit to request if the hard limit is infinite. Some systems refuse a larger one."""


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit. Keep the soft limit if the system refuses.

    The soft limit is often 1,024, and every blocking query holds a socket.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (OSError, ValueError):
        return


ROLE_MODULE_BY_NAME: Final[Mapping[str, str]] = {
    "store": "wharf.agent.roles.store",
    "api": "wharf.agent.roles.api",
    "brain": "wharf.agent.roles.brain",
    "node": "wharf.agent.roles.node",
    "snapshot": "wharf.agent.roles.snapshot",
}
"""The module of each role. Its `async def run(context: ProcessContext) -> None` returns when the process should end.

Its optional `def prepare() -> None` creates what no process changes, such as decoders. The fork server calls it, so that
all copies share these objects.
"""

RunRole = Callable[[ProcessContext], Awaitable[None]]

log = logging.getLogger(__name__)


def load_role(name: str) -> RunRole:
    """Import the module of a role and prepare it. Return its `run`."""
    module = importlib.import_module(ROLE_MODULE_BY_NAME[name])
    if hasattr(module, "prepare"):
        module.prepare()
    run: RunRole = module.run
    return run


def main() -> int:
    """Run the role that the parent orders. Return the exit code: 1 if the role failed."""
    close_on_exec()  # The lock of the data folder and the HTTP socket are for this process, not for its programs.
    # Signals of the terminal are for the parent, which stops this process by the channel.
    # Empty handlers instead of SIG_IGN: programs that this process starts would inherit SIG_IGN.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGHUP, lambda *_: None)
    faulthandler.enable()
    with contextlib.suppress(AttributeError, ValueError):
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    context = ProcessContext(_take_channel())
    if context.order.role == "node":
        allow_many_open_files()  # Programs that it starts get the former limit.
    else:
        raise_open_file_limit()
    gc.disable()  # Imported modules stay: collecting garbage took a sixth of the start time.
    role = load_role(context.order.role)
    gc.freeze()  # The collector need not scan them later either.
    gc.enable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(context, role))
    except StartupError as error:
        context.report_failure(str(error))
        return 1
    except Exception as error:  # Top level of the process.
        log.critical("process failed with an unexpected error", exc_info=error)
        return 1
    return 0


def _take_channel() -> socket.socket:
    """Move the socket from standard input to a new descriptor and return it. Standard input then reads as empty."""
    channel = socket.socket(fileno=os.dup(0))
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)
    return channel


async def _run(context: ProcessContext, role: RunRole) -> None:
    """Connect the context to the event loop, wait until the parent lets the process begin, and run the role.

    Meanwhile the process sends signs of life. If the parent asks it to stop before it may begin, the role does not run.
    """
    context.attach()
    with contextlib.suppress(NotImplementedError):
        # An operator may terminate one process; the parent then starts it again.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, context.stopping.set)
    log.debug("loaded")
    signs_of_life = context.world.start_task(context.send_signs_of_life(), name="sign of life")
    if await context.wait_to_begin():
        log.debug("beginning")
        await role(context)
    log.debug("ending")
    signs_of_life.cancel()


if __name__ == "__main__":
    exit_process(main())
