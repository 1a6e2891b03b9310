"""The demonstration of limits."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from wharf.cli.root import root
from wharf.limits.demo import run_demo
from wharf.world import RealWorld


@pytest.fixture(autouse=True)
def _restore_log_level() -> Iterator[None]:
    """Restore the log level, which the command sets for its whole process."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


def test_the_demonstration_shows_admitted_and_refused_callers() -> None:
    result = CliRunner().invoke(root, ["limits", "demo", "--duration", "6"])

    assert result.exit_code == 0, result.output
    assert "crawler was refused: 403" in result.output
    assert "why: wharf limits explain" in result.output
    assert "Demonstration ended." in result.output


def test_the_demonstration_ends_when_it_is_stopped(tmp_path: Path) -> None:
    lines: list[str] = []

    async def scenario() -> None:
        stop_event = asyncio.Event()
        stop_event.set()
        await run_demo(tmp_path, RealWorld(), seconds=3_600, port=0, print_line=lines.append, stop_event=stop_event)

    asyncio.run(scenario())
    assert not [line for line in lines if line.startswith("\nafter ")]
    assert lines[-1].startswith("\nDemonstration ended.")


def test_the_demonstration_reports_once_more_when_it_is_stopped_in_between(tmp_path: Path) -> None:
    lines: list[str] = []

    async def scenario() -> None:
        stop_event = asyncio.Event()

        def stop_after_introduction(line: str) -> None:
            lines.append(line)
            if "Try it in another terminal" in line:
                asyncio.get_running_loop().call_soon(stop_event.set)

        await run_demo(
            tmp_path, RealWorld(), seconds=3_600, port=0, print_line=stop_after_introduction, stop_event=stop_event
        )

    asyncio.run(scenario())
    assert [line.split()[:3] for line in lines if line.startswith("\nafter ")] == [["after", "0", "s"]]
