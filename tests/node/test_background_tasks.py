"""Background tasks of the node: none of them may end without a message after an unexpected error."""

import ast
import asyncio
import logging
from collections import Counter
from pathlib import Path

import pytest

from wharf.world import RealWorld
from wharf.world.tasks import start_supervised

SOURCE = Path(__file__).parents[2] / "src" / "wharf" / "node"
AWAITED = {
    "agent/allocations/task_runner.py": 1,  # `_ensure_prepared` waits for it and raises its error.
    "agent/node_agent.py": 1,  # `run` gathers them: an error ends the node's process, which is started again.
    "agent/servers/session.py": 2,  # `run` and `_exchange_allocations` gather them.
    "drivers/docker/driver.py": 1,  # `start` awaits it.
    "drivers/docker/images.py": 1,  # Each caller that needs the image awaits it.
    "drivers/plugins.py": 1,  # `_log_failure` logs its error with the name of the driver.
    "fake_fleet.py": 2,  # `run` gathers the nodes, and each awaits its session.
    "networks/manager.py": 1,  # `ensure_network` awaits it.
    "plugins.py": 1,  # `call_plugin` waits for it and raises its error.
    "tasks/identities/api_socket.py": 1,  # It ends with the connection of a task, whose errors are the task's.
}
"""Where the node starts tasks that it does not supervise, with their number: their results are awaited."""


def test_every_background_task_of_the_node_is_awaited_or_supervised() -> None:
    unsupervised: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in ("start_task", "create_task", "ensure_future")
            ):
                unsupervised[str(path.relative_to(SOURCE))] += 1

    assert AWAITED == {path: count for path, count in unsupervised.items() if not _is_own_method(path)}


def _is_own_method(path: str) -> bool:
    """Return whether the calls of this file are of a method of its own, which supervises the task."""
    text = (SOURCE / path).read_text()
    return "def start_task(" in text


def test_an_unexpected_error_of_a_background_task_is_logged_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    reported: list[Exception] = []

    async def fail() -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        task = start_supervised(RealWorld(), fail(), name="example", on_failure=reported.append)
        await asyncio.wait([task])
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())

    assert [ZeroDivisionError] == [type(error) for error in reported]
    assert ["background task failed: unexpected error task=example"] == [record.message for record in caplog.records]


def test_a_canceled_background_task_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        task = start_supervised(RealWorld(), asyncio.Event().wait(), name="example")
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())

    assert [] == caplog.records
