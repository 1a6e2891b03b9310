"""The supervisor with real programs: how they end, what they write, and who is left when something is killed."""

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.processes import is_alive
from tests.node.supervisor.keeping import ASupervisor, a_supervisor
from tests.waiting import wait_until
from wharf.node.supervisor.messages import KillRun, RunEnded, RunLogSettings, ShutDown, SignalRun
from wharf.node.supervisor.task_supervisor import RUNS_FOLDER, has_running_supervisor

CODES = (0, 1, 2, *range(126, 256))
HARMLESS = (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH)
STOPPING = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
DEADLY = sorted(signal.valid_signals() - {*HARMLESS, *STOPPING})


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[ASupervisor]:
    with a_supervisor(tmp_path) as it:
        yield it


def test_every_exit_code_comes_back_as_it_was(supervisor: ASupervisor) -> None:
    for code in CODES:
        supervisor.shell(f"c{code}", f"exit {code}")

    assert {code: supervisor.ended(f"c{code}") for code in CODES} == {
        code: RunEnded(f"c{code}", code) for code in CODES
    }


def test_every_signal_that_ends_a_program_is_told_by_its_number(supervisor: ASupervisor) -> None:
    numbers = [int(number) for number in DEADLY]
    for number in numbers:
        supervisor.start(f"s{number}", ("/usr/bin/env", "sh", "-c", f"ulimit -c 0; kill -{number} $$; sleep 9"))

    assert {number: supervisor.ended(f"s{number}") for number in numbers} == {
        number: RunEnded(f"s{number}", 128 + number, number) for number in numbers
    }


def test_both_streams_are_kept_whole_and_apart(supervisor: ASupervisor) -> None:
    supervisor.shell("talks", "seq 1 20000; seq 1 300 >&2")
    supervisor.ended("talks")

    assert supervisor.output("talks").splitlines() == [str(number) for number in range(1, 20_001)]
    assert supervisor.output("talks", "stderr").splitlines() == [str(number) for number in range(1, 301)]


def test_the_shell_that_waits_adds_nothing_to_the_output(supervisor: ASupervisor) -> None:
    supervisor.shell("killed", "kill -9 $$")
    supervisor.ended("killed")

    assert supervisor.output("killed") + supervisor.output("killed", "stderr") == ""


def test_logs_are_kept_to_a_size_and_a_count(supervisor: ASupervisor) -> None:
    log = RunLogSettings(str(supervisor.logs), "long", max_files=3, max_file_bytes=10_000)
    supervisor.shell("long", "seq 1 20000", log=log)
    supervisor.ended("long")

    files = sorted(supervisor.logs.glob("long.stdout.*"), key=lambda file: int(file.suffix[1:]))
    whole = "".join(f"{number}\n" for number in range(1, 20_001))
    assert [file.name for file in files] == ["long.stdout.8", "long.stdout.9", "long.stdout.10"]
    assert [file.stat().st_size for file in files] == [10_000, 10_000, len(whole) % 10_000]
    assert supervisor.output("long") == whole[80_000:]


def test_a_program_gets_the_environment_it_was_given_and_nothing_else(supervisor: ASupervisor) -> None:
    supervisor.start("env", ("/usr/bin/env",), environment={"A": "1", "a-b.c": "x y", "line": "5", "code": "6"})
    supervisor.ended("env")

    found = dict(line.partition("=")[::2] for line in supervisor.output("env").splitlines())
    found.pop("_", None)
    path = found.pop("PATH")
    assert path
    assert found == {
        "A": "1", "a-b.c": "x y", "line": "5", "code": "6", "PWD": str(supervisor.folder), "WHARF_RUN": "env",
    }  # fmt: skip


def test_a_program_hears_the_signals_that_a_shell_takes_from_its_background(supervisor: ASupervisor) -> None:
    supervisor.start("sleeps", ("/bin/sleep", "100"))
    supervisor.begun("sleeps")
    supervisor.say(SignalRun("sleeps", signal.SIGINT))

    assert supervisor.ended("sleeps") == RunEnded("sleeps", 128 + signal.SIGINT, signal.SIGINT)


def test_a_signal_reaches_the_children_of_the_program_too(supervisor: ASupervisor) -> None:
    supervisor.shell("parent", "sleep 100 & wait; exit 5")
    supervisor.begun("parent")
    supervisor.say(SignalRun("parent", signal.SIGTERM))

    supervisor.ended("parent")
    wait_until(lambda: not supervisor.left(), what="nothing is left")


@pytest.mark.parametrize("way", ["auto", "mark"])
def test_what_forks_away_ends_with_its_program(tmp_path: Path, way: str) -> None:
    with a_supervisor(tmp_path, way=way) as supervisor:
        supervisor.shell("forks", "setsid sleep 100 & sleep 0.1; exit 0")

        assert supervisor.ended("forks") == RunEnded("forks")
        wait_until(lambda: not supervisor.left(), what="what forked away is gone")


def test_what_is_said_between_an_end_and_its_hearing_troubles_nobody(supervisor: ASupervisor, tmp_path: Path) -> None:
    wait = f"while [ ! -e {tmp_path}/%s ]; do sleep 0.01; done"
    child = f"{wait % 'speak'}; echo late; touch {tmp_path}/spoken"
    supervisor.shell("over", f"setsid sh -c '{child}' & {wait % 'end'}")
    supervisor.begun("over")
    os.kill(supervisor.pid, signal.SIGSTOP)
    (tmp_path / "end").touch()
    wait_until(lambda: has_news(supervisor, "over"), what="its end waits to be heard")
    (tmp_path / "speak").touch()
    wait_until((tmp_path / "spoken").exists, what="the child has spoken")
    os.kill(supervisor.pid, signal.SIGCONT)

    assert RunEnded("over") == supervisor.ended("over")
    supervisor.shell("next", "echo here")
    assert (RunEnded("next"), "here\n") == (supervisor.ended("next"), supervisor.output("next"))


def has_news(supervisor: ASupervisor, name: str) -> bool:
    pipe = os.open(supervisor.folder / RUNS_FOLDER / name / "news", os.O_RDWR | os.O_NONBLOCK)
    try:
        return bool(select.select([pipe], [], [], 0)[0])
    finally:
        os.close(pipe)


@pytest.mark.parametrize("way", ["auto", "mark"])
def test_killing_ends_all_that_a_program_started(tmp_path: Path, way: str) -> None:
    with a_supervisor(tmp_path, way=way) as supervisor:
        supervisor.shell("deaf", "trap '' INT TERM; setsid sleep 100 & echo here; while :; do sleep 100; done")
        wait_until(lambda: supervisor.output("deaf"), what="it runs")
        supervisor.say(KillRun("deaf"))

        assert supervisor.ended("deaf") == RunEnded("deaf", 137, 9)
        wait_until(lambda: not supervisor.left(), what="all of it is gone")


def test_the_same_name_again_starts_nothing(supervisor: ASupervisor) -> None:
    supervisor.shell("once", "echo once; sleep 0.2")
    supervisor.shell("once", "echo twice")
    supervisor.ended("once")
    supervisor.shell("once", "echo thrice")

    wait_until(lambda: len(supervisor.told("once")) >= 3, what="the end is told again")
    assert supervisor.output("once") == "once\n"


def test_a_program_that_cannot_be_found_ends_as_in_a_shell(supervisor: ASupervisor) -> None:
    supervisor.start("absent", ("/no/such/program",))

    assert supervisor.ended("absent") == RunEnded("absent", 127)
    assert "/no/such/program" in supervisor.output("absent", "stderr")


def test_a_program_goes_on_while_nobody_looks_after_it(supervisor: ASupervisor, tmp_path: Path) -> None:
    go = tmp_path / "go"
    supervisor.shell("goes-on", f"echo one; until [ -e {go} ]; do sleep 0.05; done; seq 1 5000; exit 7")
    pid = supervisor.begun("goes-on")
    supervisor.kill()
    go.touch()
    wait_until(lambda: not is_alive(pid), what="the program has ended, and nobody read its output")

    supervisor.begin()
    assert supervisor.ended("goes-on") == RunEnded("goes-on", 7)
    assert supervisor.output("goes-on").splitlines() == ["one", *map(str, range(1, 5001))]


def test_a_program_that_writes_more_than_fits_waits_for_the_next_supervisor(
    supervisor: ASupervisor, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    supervisor.shell("fills", f"until [ -e {go} ]; do sleep 0.05; done; seq 1 200000")
    pid = supervisor.begun("fills")
    supervisor.kill()
    go.touch()
    wait_until(lambda: "pipe" in Path(f"/proc/{pid}/wchan").read_text() or _is_blocked(pid), what="the pipe is full")

    supervisor.begin()
    assert supervisor.ended("fills") == RunEnded("fills")
    assert supervisor.output("fills").splitlines() == [str(number) for number in range(1, 200_001)]


def _is_blocked(pid: int) -> bool:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return any("pipe" in Path(f"/proc/{child}/wchan").read_text() for child in children)


def test_without_its_shim_a_program_lives_and_its_exit_code_is_not_guessed(supervisor: ASupervisor) -> None:
    supervisor.shell("orphan", "echo before; sleep 0.3; echo after; exit 4")
    pid = supervisor.begun("orphan")
    os.kill(supervisor.shim("orphan"), signal.SIGKILL)

    assert supervisor.ended("orphan") == RunEnded("orphan", -1, is_known=False)
    assert not is_alive(pid)
    assert supervisor.output("orphan") == "before\nafter\n"


def test_a_program_lives_when_everybody_else_is_killed(supervisor: ASupervisor, tmp_path: Path) -> None:
    go = tmp_path / "go"
    supervisor.shell(
        "lonely", f"echo before; until [ -e {go} ]; do echo on >&2; sleep 0.05; done; echo after; sleep 0.3"
    )
    pid = supervisor.begun("lonely")
    shim = supervisor.shim("lonely")
    supervisor.kill()
    os.kill(shim, signal.SIGKILL)
    wait_until(lambda: not is_alive(shim), what="the shim is dead")

    supervisor.begin()
    assert supervisor.begun("lonely") == pid
    go.touch()
    assert supervisor.ended("lonely") == RunEnded("lonely", -1, is_known=False)
    assert supervisor.output("lonely") == "before\nafter\n"


def test_what_an_agent_missed_is_told_to_the_next(supervisor: ASupervisor) -> None:
    supervisor.shell("quick", "exit 9")
    supervisor.ended("quick")
    supervisor.connect()

    assert supervisor.told("quick") == [RunEnded("quick", 9)]
    supervisor.forget("quick")
    supervisor.connect()
    assert supervisor.told("quick") == []
    assert list((supervisor.folder / "runs").iterdir()) == []


def test_a_second_supervisor_leaves_the_first_alone(supervisor: ASupervisor) -> None:
    first = supervisor.pid
    supervisor.begin()

    assert supervisor.pid == first


def test_it_ends_when_told_to_and_nothing_runs(supervisor: ASupervisor) -> None:
    supervisor.shell("last", "sleep 0.2")
    supervisor.begun("last")
    supervisor.say(ShutDown())

    wait_until(lambda: not is_alive(supervisor.pid), what="the supervisor has ended")
    assert not supervisor.left()


def test_whether_something_runs_in_a_folder_can_be_asked_from_outside(supervisor: ASupervisor, tmp_path: Path) -> None:
    assert has_running_supervisor(supervisor.folder) is False
    assert has_running_supervisor(tmp_path / "nowhere") is False
    supervisor.start("stays", ("/bin/sleep", "1000"))
    supervisor.begun("stays")
    assert has_running_supervisor(supervisor.folder) is True
