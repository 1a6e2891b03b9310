"""A command in a task, as a process of the host."""

import asyncio
import os
from pathlib import Path

from wharf.node.drivers.command_process import start_command
from wharf.node.drivers.port import CommandOrder


def test_a_caller_that_disconnects_before_the_terminal_exists_ends_the_command(tmp_path: Path) -> None:
    async def run_command() -> int:
        order = CommandOrder("run", "a-command", ("sleep", "60"), dict(os.environ), str(tmp_path), is_tty=True)
        command = await start_command(order, "/bin/sleep", proc_folder=Path("/proc/self"), cgroup=None)
        await command.close_input()
        code = await command.wait()
        await command.end()
        return code

    assert 129 == asyncio.run(asyncio.wait_for(run_command(), 30))
