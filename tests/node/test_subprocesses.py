"""Helper programs: their output, and the end of all their processes after a timeout or a failed check."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.waiting import wait_until
from wharf.node.processes import find_process, list_pids, read_arguments
from wharf.node.subprocesses import ProgramResult, run_program, start_program

ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath)}


def run_script(script: str, **options: object) -> ProgramResult:
    command = ["/bin/sh", "-c", script]
    return asyncio.run(run_program(command, environment=ENVIRONMENT, **options))  # type: ignore[arg-type]  # options of `run_program`


def read_pid(file: Path) -> int:
    wait_until(lambda: file.exists() and file.read_text().strip(), what="the script has written a process id")
    return int(file.read_text())


def wait_killed(file: Path) -> None:
    """Wait until the process whose id is in the file is gone."""
    pid = read_pid(file)
    wait_until(lambda: find_process(pid) is None, what="the process is killed")


def test_exit_code_output_and_errors_are_returned() -> None:
    assert ProgramResult(3, b"in\n", b"error\n") == run_script("cat; echo error >&2; exit 3", input_data=b"in\n")


def test_long_output_is_cut_at_the_beginning() -> None:
    assert b"99\n100\n" == run_script("seq 100", max_output_bytes=7).output


def test_a_program_and_its_children_are_killed_after_the_timeout(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        run_script(f"sleep 100 & echo $! >{tmp_path}/pid; wait", timeout_s=0.5)

    wait_killed(tmp_path / "pid")


def test_a_child_that_holds_the_output_is_killed_after_the_timeout_although_the_program_ended(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        run_script(f"sleep 100 & echo $! >{tmp_path}/pid; exit 0", timeout_s=0.5)

    wait_killed(tmp_path / "pid")


def test_a_program_is_killed_if_a_check_fails(tmp_path: Path) -> None:
    async def fail() -> None:
        raise ValueError("too large")

    with pytest.raises(ValueError, match="too large"):
        run_script(f"echo $$ >{tmp_path}/pid; exec sleep 100", check=fail)

    wait_killed(tmp_path / "pid")


@pytest.mark.parametrize(("is_group_killed", "is_surviving"), [(False, True), (True, False)])
def test_children_that_closed_their_output_survive_unless_the_group_is_killed(
    tmp_path: Path, is_group_killed: bool, is_surviving: bool
) -> None:
    script = f"sleep 100 >/dev/null 2>&1 & echo $! >{tmp_path}/pid"

    run_script(script, is_group_killed=is_group_killed)

    pid = read_pid(tmp_path / "pid")
    wait_until(lambda: (find_process(pid) is not None) == is_surviving, what="the child has the expected state")
    if is_surviving:
        os.kill(pid, 9)


def test_a_program_that_does_not_exist_cannot_be_started() -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(run_program(["/no/such/program"], environment={}))


@pytest.mark.parametrize(
    ("command", "environment"),
    [(["/bin/echo", "a\0b"], {}), (["/bin/true"], {"A": "a\0"}), (["/bin/true"], {"A=B": "1"}), (["/bin/\ud800"], {})],
)
@pytest.mark.parametrize("input_texts", [(), ("text",)])
def test_a_text_that_no_program_can_receive_is_an_error_of_the_system(
    command: list[str], environment: dict[str, str], input_texts: tuple[str, ...]
) -> None:
    with pytest.raises(OSError, match="a text that no program can receive"):
        asyncio.run(run_program(command, environment=environment, input_texts=input_texts))


def test_a_canceled_start_ends_its_program_and_collects_its_exit_code() -> None:
    async def scenario() -> list[int]:
        command = ["/bin/sleep", "1000.25"]
        start = asyncio.ensure_future(start_program(command, environment={}))
        await asyncio.sleep(0)  # The program is started, and its pipes are not connected yet.
        # The system shows its arguments a moment later. The loop stands still meanwhile.
        pids = wait_until(
            lambda: [pid for pid in list_pids() if read_arguments(pid)[:-1] == command], what="the program runs"
        )
        start.cancel()
        await asyncio.wait([start])
        return [pid for pid in pids if pid in list_pids()]

    assert [] == asyncio.run(scenario())
