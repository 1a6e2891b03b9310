"""The supervisor with real programs: their ends, their output, and the programs that survive when processes are killed."""

import os
import resource
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.agent.processes import is_alive
from tests.node.supervisor.supervisor_process import SupervisorProcess, running_supervisor
from tests.waiting import wait_until
from wharf.node.processes import has_arguments, read_stat_fields
from wharf.node.supervisor.messages import (
    KillRun,
    RequestRunMessages,
    RunEnded,
    RunLogSettings,
    RunMessage,
    RunRefused,
    ShutDown,
    SignalRun,
)
from wharf.node.supervisor.supervisor_log import MAX_LOG_BYTES
from wharf.node.supervisor.task_supervisor import RUNS_FOLDER, count_running_programs, has_running_supervisor

CODES = (0, 1, 2, *range(126, 256))
HARMLESS = (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH)
STOPPING = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
DEADLY = sorted(signal.valid_signals() - {*HARMLESS, *STOPPING})


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[SupervisorProcess]:
    with running_supervisor(tmp_path) as supervisor:
        yield supervisor


def test_every_exit_code_is_reported(supervisor: SupervisorProcess) -> None:
    for code in CODES:
        supervisor.start_script(f"c{code}", f"exit {code}")

    assert {code: supervisor.wait_ended(f"c{code}") for code in CODES} == {
        code: RunEnded(f"c{code}", code) for code in CODES
    }


def test_every_deadly_signal_is_reported_by_its_number(supervisor: SupervisorProcess) -> None:
    numbers = [int(number) for number in DEADLY]
    for number in numbers:
        supervisor.start(f"s{number}", ("/usr/bin/env", "sh", "-c", f"ulimit -c 0; kill -{number} $$; sleep 9"))

    assert {number: supervisor.wait_ended(f"s{number}") for number in numbers} == {
        number: RunEnded(f"s{number}", 128 + number, number) for number in numbers
    }


def test_stdout_and_stderr_are_stored_completely_in_separate_files(supervisor: SupervisorProcess) -> None:
    supervisor.start_script("talks", "seq 1 20000; seq 1 300 >&2")
    supervisor.wait_ended("talks")

    assert supervisor.output("talks").splitlines() == [str(number) for number in range(1, 20_001)]
    assert supervisor.output("talks", "stderr").splitlines() == [str(number) for number in range(1, 301)]


def test_the_shim_adds_nothing_to_the_output(supervisor: SupervisorProcess) -> None:
    supervisor.start_script("killed", "kill -9 $$")
    supervisor.wait_ended("killed")

    assert supervisor.output("killed") + supervisor.output("killed", "stderr") == ""


def test_log_files_are_limited_in_size_and_number(supervisor: SupervisorProcess) -> None:
    log = RunLogSettings(str(supervisor.logs), "long", max_files=3, max_file_bytes=10_000)
    supervisor.start_script("long", "seq 1 20000", log=log)
    supervisor.wait_ended("long")

    files = sorted(supervisor.logs.glob("long.stdout.*"), key=lambda file: int(file.suffix[1:]))
    full_output = "".join(f"{number}\n" for number in range(1, 20_001))
    assert [file.name for file in files] == ["long.stdout.8", "long.stdout.9", "long.stdout.10"]
    assert [file.stat().st_size for file in files] == [10_000, 10_000, len(full_output) % 10_000]
    assert supervisor.output("long") == full_output[80_000:]


def test_a_pipe_in_the_place_of_the_next_log_file_blocks_nothing(supervisor: SupervisorProcess) -> None:
    log = RunLogSettings(str(supervisor.logs), "fifo", max_files=9, max_file_bytes=10_000)
    files = [supervisor.logs / f"fifo.stdout.{number}" for number in (0, 2, 3)]
    wait = f"while [ ! -s {files[0]} ]; do sleep 0.01; done"
    supervisor.start_script("fifo", f"echo 1; {wait}; mkfifo {supervisor.logs}/fifo.stdout.1; seq 2 5000", log=log)
    supervisor.start_script("other", "echo other")

    assert supervisor.wait_ended("fifo") == RunEnded("fifo")
    assert supervisor.wait_ended("other") == RunEnded("other")
    assert "".join(file.read_text() for file in files) == "".join(f"{number}\n" for number in range(1, 5_001))


def test_output_goes_to_no_folder_to_which_the_program_has_linked_its_log_folder(
    supervisor: SupervisorProcess, tmp_path: Path
) -> None:
    log, victim = RunLogSettings(str(tmp_path / "alloc/logs"), "evil", max_file_bytes=1_000), tmp_path / "victim"
    victim.mkdir()
    (tmp_path / "alloc/logs").mkdir(parents=True)
    supervisor.start_script("evil", "cd alloc; mv logs moved; ln -s ../victim logs; seq 1 1000", log=log)
    supervisor.wait_ended("evil")

    assert list(victim.iterdir()) == []
    assert len(list((tmp_path / "alloc/moved").iterdir())) == 4


def test_a_program_has_exactly_the_requested_environment(supervisor: SupervisorProcess) -> None:
    supervisor.start("env", ("/usr/bin/env",), environment={"A": "1", "a-b.c": "x y", "line": "5", "code": "6"})
    supervisor.wait_ended("env")

    found = dict(line.partition("=")[::2] for line in supervisor.output("env").splitlines())
    found.pop("_", None)
    path = found.pop("PATH")
    assert path
    assert found == {
        "A": "1", "a-b.c": "x y", "line": "5", "code": "6", "PWD": str(supervisor.folder), "WHARF_RUN": "env",
    }  # fmt: skip


def test_programs_get_the_usual_limit_of_open_files_and_the_supervisor_a_larger_one(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with running_supervisor(tmp_path) as supervisor:
            names = [f"r{number}" for number in range(60)]  # More than 256 descriptors.
            for name in names:
                supervisor.start_script(name, "ulimit -n; exec sleep 100")
            for name in names:
                supervisor.wait_begun(name)
            wait_until(lambda: supervisor.output("r59"), what="the last program writes its limit")

            assert supervisor.output("r59") == "256\n"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_program_receives_signals_that_a_shell_ignores_in_background_commands(supervisor: SupervisorProcess) -> None:
    supervisor.start("sleeps", ("/bin/sleep", "100"))
    supervisor.wait_begun("sleeps")
    supervisor.send(SignalRun("sleeps", signal.SIGINT))

    assert supervisor.wait_ended("sleeps") == RunEnded("sleeps", 128 + signal.SIGINT, signal.SIGINT)


def test_a_signal_reaches_the_children_of_the_program_too(supervisor: SupervisorProcess) -> None:
    supervisor.start_script("parent", "sleep 100 & wait; exit 5")
    supervisor.wait_begun("parent")
    supervisor.send(SignalRun("parent", signal.SIGTERM))

    supervisor.wait_ended("parent")
    wait_until(lambda: not supervisor.list_processes(), what="all processes are gone")


@pytest.mark.parametrize("tracking_method", ["auto", "mark"])
def test_processes_that_left_the_session_end_with_the_program(tmp_path: Path, tracking_method: str) -> None:
    with running_supervisor(tmp_path, tracking_method=tracking_method) as supervisor:
        supervisor.start_script("forks", "setsid sleep 100 & sleep 0.1; exit 0")

        assert supervisor.wait_ended("forks") == RunEnded("forks")
        wait_until(lambda: not supervisor.list_processes(), what="the forked process is gone")


def test_output_after_the_end_of_a_program_does_not_disturb_the_supervisor(
    supervisor: SupervisorProcess, tmp_path: Path
) -> None:
    wait = f"while [ ! -e {tmp_path}/%s ]; do sleep 0.01; done"
    child = f"{wait % 'print'}; echo late; touch {tmp_path}/printed"
    supervisor.start_script("over", f"setsid sh -c '{child}' & {wait % 'end'}")
    supervisor.wait_begun("over")
    os.kill(supervisor.pid, signal.SIGSTOP)
    (tmp_path / "end").touch()
    wait_until(lambda: has_notification(supervisor, "over"), what="the shim has notified the supervisor")
    (tmp_path / "print").touch()
    wait_until((tmp_path / "printed").exists, what="the child has printed")
    os.kill(supervisor.pid, signal.SIGCONT)

    assert RunEnded("over") == supervisor.wait_ended("over")
    supervisor.start_script("next", "echo here")
    assert (RunEnded("next"), "here\n") == (supervisor.wait_ended("next"), supervisor.output("next"))


def has_notification(supervisor: SupervisorProcess, name: str) -> bool:
    pipe = os.open(supervisor.folder / RUNS_FOLDER / name / "news", os.O_RDWR | os.O_NONBLOCK)
    try:
        return bool(select.select([pipe], [], [], 0)[0])
    finally:
        os.close(pipe)


@pytest.mark.parametrize("tracking_method", ["auto", "mark"])
def test_a_kill_ends_all_processes_of_a_program(tmp_path: Path, tracking_method: str) -> None:
    with running_supervisor(tmp_path, tracking_method=tracking_method) as supervisor:
        supervisor.start_script("deaf", "trap '' INT TERM; setsid sleep 100 & echo here; while :; do sleep 100; done")
        wait_until(lambda: supervisor.output("deaf"), what="the program runs")
        supervisor.send(KillRun("deaf"))

        assert supervisor.wait_ended("deaf") == RunEnded("deaf", 137, 9)
        wait_until(lambda: not supervisor.list_processes(), what="all processes are gone")


def test_a_second_start_with_the_same_name_starts_nothing(supervisor: SupervisorProcess) -> None:
    supervisor.start_script("once", "echo once; sleep 0.2")
    supervisor.start_script("once", "echo twice")
    supervisor.wait_ended("once")
    supervisor.start_script("once", "echo thrice")

    wait_until(lambda: len(supervisor.list_messages("once")) >= 3, what="the end is reported again")
    assert supervisor.output("once") == "once\n"


def test_a_missing_program_ends_with_exit_code_127(supervisor: SupervisorProcess) -> None:
    supervisor.start("absent", ("/no/such/program",))

    assert supervisor.wait_ended("absent") == RunEnded("absent", 127)
    assert "/no/such/program" in supervisor.output("absent", "stderr")


def test_a_program_continues_without_a_supervisor(supervisor: SupervisorProcess, tmp_path: Path) -> None:
    may_end = tmp_path / "go"
    supervisor.start_script("goes-on", f"echo one; until [ -e {may_end} ]; do sleep 0.05; done; seq 1 5000; exit 7")
    pid = supervisor.wait_begun("goes-on")
    supervisor.kill()
    may_end.touch()
    wait_until(lambda: not is_alive(pid), what="the program has ended and its output is not read")

    supervisor.launch()
    assert supervisor.wait_ended("goes-on") == RunEnded("goes-on", 7)
    assert supervisor.output("goes-on").splitlines() == ["one", *map(str, range(1, 5001))]


def test_a_program_with_a_full_pipe_waits_for_the_next_supervisor(
    supervisor: SupervisorProcess, tmp_path: Path
) -> None:
    may_end = tmp_path / "go"
    supervisor.start_script("fills", f"until [ -e {may_end} ]; do sleep 0.05; done; seq 1 200000")
    pid = supervisor.wait_begun("fills")
    supervisor.kill()
    may_end.touch()
    wait_until(lambda: "pipe" in Path(f"/proc/{pid}/wchan").read_text() or _is_blocked(pid), what="the pipe is full")

    supervisor.launch()
    assert supervisor.wait_ended("fills") == RunEnded("fills")
    assert supervisor.output("fills").splitlines() == [str(number) for number in range(1, 200_001)]


def _is_blocked(pid: int) -> bool:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return any("pipe" in Path(f"/proc/{child}/wchan").read_text() for child in children)


def test_a_program_survives_its_shim_but_its_exit_code_is_unknown(supervisor: SupervisorProcess) -> None:
    supervisor.start_script("orphan", "echo before; sleep 0.3; echo after; exit 4")
    pid = supervisor.wait_begun("orphan")
    os.kill(supervisor.read_shim_pid("orphan"), signal.SIGKILL)

    assert supervisor.wait_ended("orphan") == RunEnded("orphan", -1, is_known=False)
    assert not is_alive(pid)
    assert supervisor.output("orphan") == "before\nafter\n"


def test_a_program_survives_killed_supervisor_and_shim(supervisor: SupervisorProcess, tmp_path: Path) -> None:
    may_end = tmp_path / "go"
    supervisor.start_script(
        "lonely", f"echo before; until [ -e {may_end} ]; do echo on >&2; sleep 0.05; done; echo after; sleep 0.3"
    )
    pid = supervisor.wait_begun("lonely")
    shim = supervisor.read_shim_pid("lonely")
    supervisor.kill()
    os.kill(shim, signal.SIGKILL)
    wait_until(lambda: not is_alive(shim), what="the shim is dead")

    supervisor.launch()
    assert supervisor.wait_begun("lonely") == pid
    may_end.touch()
    assert supervisor.wait_ended("lonely") == RunEnded("lonely", -1, is_known=False)
    assert supervisor.output("lonely") == "before\nafter\n"


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


def _replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("names", "damage"),
    [
        *[(("order",), damage) for damage in (_empty, Path.unlink)],
        *[(("order", "order.copy"), damage) for damage in (_empty, _flip, _replace_by_folder, Path.unlink)],
        *[(("pid",), damage) for damage in (_empty, _flip, _replace_by_folder, Path.unlink)],
        (("out", "news"), Path.unlink),
    ],
)
def test_a_program_survives_damaged_files_of_its_run(
    supervisor: SupervisorProcess, names: tuple[str, ...], damage: Callable[[Path], None]
) -> None:
    supervisor.start_script("hurt", "echo before; until [ -e go ]; do sleep 0.05; done; exit 7")
    pid = supervisor.wait_begun("hurt")
    supervisor.read_shim_pid("hurt")
    supervisor.kill()
    for name in names:
        damage(supervisor.folder / RUNS_FOLDER / "hurt" / name)

    supervisor.launch()
    assert supervisor.wait_begun("hurt") in (pid, 0)
    (supervisor.folder / "go").touch()
    assert supervisor.wait_ended("hurt") == RunEnded("hurt", 7)


def test_the_shim_of_a_run_whose_folder_is_deleted_ends(supervisor: SupervisorProcess) -> None:
    supervisor.start("lost", ("/bin/sleep", "1000"))
    supervisor.wait_begun("lost")
    shim = supervisor.read_shim_pid("lost")
    supervisor.kill()
    shutil.rmtree(supervisor.folder / RUNS_FOLDER / "lost")

    supervisor.launch()

    wait_until(lambda: not is_alive(shim), what="the shim has ended")


def test_shim_and_program_of_a_lost_data_folder_continue_when_the_next_node_uses_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with running_supervisor(folder, tracking_method="mark") as supervisor:
        supervisor.start("former", ("/bin/sleep", "1000"))
        program, shim = supervisor.wait_begun("former"), supervisor.read_shim_pid("former")
        supervisor.kill()
        shutil.rmtree(folder)
        folder.mkdir()

        supervisor.launch()

        assert (True, True) == (is_alive(shim), is_alive(program))


def test_a_reconnected_agent_receives_missed_ends(supervisor: SupervisorProcess) -> None:
    supervisor.start_script("quick", "exit 9")
    supervisor.wait_ended("quick")
    supervisor.connect()

    assert supervisor.list_messages("quick") == [RunEnded("quick", 9)]
    supervisor.forget("quick")
    supervisor.connect()
    assert supervisor.list_messages("quick") == []
    assert list((supervisor.folder / "runs").iterdir()) == []


def test_a_second_supervisor_does_not_replace_the_first(supervisor: SupervisorProcess) -> None:
    first = supervisor.pid
    supervisor.launch()

    assert supervisor.pid == first


def test_a_supervisor_shuts_down_after_its_last_run(supervisor: SupervisorProcess) -> None:
    supervisor.start_script("last", "sleep 0.2")
    supervisor.wait_begun("last")
    supervisor.send(ShutDown())

    wait_until(lambda: not is_alive(supervisor.pid), what="the supervisor has ended")
    assert not supervisor.list_processes()


def test_a_folder_with_a_running_supervisor_is_detected(supervisor: SupervisorProcess, tmp_path: Path) -> None:
    assert has_running_supervisor(supervisor.folder) is False
    assert has_running_supervisor(tmp_path / "nowhere") is False
    supervisor.start("stays", ("/bin/sleep", "1000"))
    supervisor.wait_begun("stays")
    assert has_running_supervisor(supervisor.folder) is True


def test_programs_that_run_without_their_agent_are_counted(supervisor: SupervisorProcess, tmp_path: Path) -> None:
    supervisor.start("ended", ("/bin/true",))
    supervisor.wait_ended("ended")
    supervisor.start("stays", ("/bin/sleep", "1000"))
    supervisor.wait_begun("stays")

    assert count_running_programs(supervisor.folder) == 1
    assert count_running_programs(tmp_path / "nowhere") == 0


def test_a_supervisor_without_tasks_ends_after_sigterm(supervisor: SupervisorProcess) -> None:
    supervisor.start("ended", ("/bin/true",))
    supervisor.wait_ended("ended")

    os.kill(supervisor.pid, signal.SIGTERM)

    wait_until(lambda: not is_alive(supervisor.pid), what="the supervisor has ended")


def test_a_supervisor_with_tasks_ignores_sigterm_and_logs_why(supervisor: SupervisorProcess) -> None:
    supervisor.start("stays", ("/bin/sleep", "1000"))
    task = supervisor.wait_begun("stays")
    log = supervisor.folder / "supervisor.log"

    os.kill(supervisor.pid, signal.SIGTERM)

    wait_until(lambda: "ignoring SIGTERM: tasks are running" in log.read_text(), what="the supervisor logs the reason")
    assert "runs=1" in log.read_text()
    assert (True, True) == (is_alive(supervisor.pid), is_alive(task))


def test_a_supervisor_whose_folder_is_deleted_ends_and_its_task_continues(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with running_supervisor(folder, max_folder_absence_s="0.1") as supervisor:
        supervisor.start("stays", ("/bin/sleep", "1000"))
        task = supervisor.wait_begun("stays")
        wait_until(lambda: has_arguments(task, "/bin/sleep"), what="the program has replaced its launcher")

        folder.rename(tmp_path / "deleted")

        wait_until(lambda: not is_alive(supervisor.pid), what="the supervisor has ended")
        assert is_alive(task)
        (tmp_path / "deleted").rename(folder)


@contextmanager
def mounted_disk(folder: Path) -> Iterator[Path]:
    """A small disk of its own, which a test can fill."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "wharf-test", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def read_cpu_s(pid: int) -> float:
    fields = read_stat_fields(pid)
    assert fields is not None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fill(file: Path) -> None:
    with suppress(OSError), file.open("wb", 0) as filler:
        while True:
            filler.write(bytes(4096))


NUMBERS = "".join(f"{number}\n" for number in range(1, 5_001))


@pytest.mark.needs("namespaces")
def test_output_of_an_ended_program_is_written_when_the_disk_has_space_again(
    supervisor: SupervisorProcess, tmp_path: Path
) -> None:
    with mounted_disk(tmp_path / "disk") as disk:
        supervisor.logs = disk / "alloc/logs"
        supervisor.logs.mkdir(parents=True)
        fill(disk / "filler")
        supervisor.start_script("full", "seq 1 5000")
        assert supervisor.wait_ended("full") == RunEnded("full")
        supervisor.forget("full")
        supervisor.kill()  # The shim keeps the output meanwhile.
        supervisor.launch()

        (disk / "filler").unlink()

        wait_until(lambda: supervisor.output("full") == NUMBERS, what="the output is complete")
        supervisor.forget("full")
        wait_until(lambda: not (supervisor.folder / RUNS_FOLDER / "full").exists(), what="the run is deleted")


@pytest.mark.needs("namespaces")
def test_a_supervisor_with_output_that_cannot_be_written_rests_and_logs_once(
    supervisor: SupervisorProcess, tmp_path: Path
) -> None:
    with mounted_disk(tmp_path / "disk") as disk:
        supervisor.logs = disk / "alloc/logs"
        supervisor.logs.mkdir(parents=True)
        fill(disk / "filler")
        supervisor.start_script("full", "while :; do echo line; done")
        supervisor.wait_begun("full")
        log_file = supervisor.folder / "supervisor.log"
        wait_until(lambda: "task output cannot be written" in log_file.read_text(), what="the output is blocked")
        before_s = read_cpu_s(supervisor.pid)
        supervisor.start("sleeps", ("/bin/sleep", "2"))
        supervisor.wait_ended("sleeps")

        assert read_cpu_s(supervisor.pid) - before_s < 0.3
        assert log_file.read_text().count("task output cannot be written") == 1


@pytest.mark.needs("namespaces")
def test_blocked_output_is_reported_once_to_an_agent_that_wants_messages(
    supervisor: SupervisorProcess, tmp_path: Path
) -> None:
    with mounted_disk(tmp_path / "disk") as disk:
        supervisor.logs = disk / "alloc/logs"
        supervisor.logs.mkdir(parents=True)
        fill(disk / "filler")
        supervisor.start_script("full", "while :; do echo line; done")
        log_file = supervisor.folder / "supervisor.log"
        wait_until(lambda: "task output cannot be written" in log_file.read_text(), what="the output is blocked")
        wait_until_handled(supervisor)
        before = list_texts(supervisor, "full")
        supervisor.send(RequestRunMessages())
        wait_until_handled(supervisor)
        [text] = list_texts(supervisor, "full")
        (disk / "filler").unlink()
        wait_until(lambda: "task output can be written again" in log_file.read_text(), what="the output is written")
        fill(disk / "filler")
        wait_until(lambda: log_file.read_text().count("cannot be written") == 2, what="the output is blocked again")
        supervisor.connect()
        supervisor.send(RequestRunMessages())
        wait_until_handled(supervisor)

        assert [] == before
        assert text.startswith("output cannot be written to the log files: No space left on device; the task waits")
        assert [] == list_texts(supervisor, "full")


def wait_until_handled(supervisor: SupervisorProcess) -> None:
    """Wait until the supervisor has handled all messages that were sent to it."""
    name = f"after-{len(supervisor.names)}"
    supervisor.start(name, ("/bin/true",))
    supervisor.wait_ended(name)


def list_texts(supervisor: SupervisorProcess, name: str) -> list[str]:
    return [message.text for message in supervisor.list_messages(name) if isinstance(message, RunMessage)]


@pytest.mark.parametrize(
    ("command", "environment"),
    [(("/bin/echo", "a\0b"), {}), (("/bin/true",), {"A": "b\0"}), (("/bin/true",), {"A\0": "b"}), (("/bin/\0",), {})],
)
def test_a_text_that_no_program_can_receive_is_refused(
    supervisor: SupervisorProcess, command: tuple[str, ...], environment: dict[str, str]
) -> None:
    supervisor.start("zero", command, environment=environment)
    supervisor.start("beside", ("/bin/true",))

    assert RunEnded("beside") == supervisor.wait_ended("beside")
    [refusal] = supervisor.list_messages("zero")
    assert isinstance(refusal, RunRefused)
    assert refusal.why.startswith("the program cannot be started: embedded null")
    assert not (supervisor.folder / RUNS_FOLDER / "zero").exists()


def test_a_name_that_is_too_long_for_a_log_file_does_not_keep_the_supervisor_busy(
    supervisor: SupervisorProcess,
) -> None:
    log = RunLogSettings(str(supervisor.logs), "y" * 250)
    supervisor.start_script("long", "echo line", log=log)

    assert supervisor.wait_ended("long") == RunEnded("long")
    log_file = supervisor.folder / "supervisor.log"
    assert log_file.read_text().count("task output cannot be written") == 1


def test_a_full_log_of_the_supervisor_is_replaced(tmp_path: Path) -> None:
    log_file = tmp_path / "supervisor.log"
    log_file.write_bytes(b"x" * (MAX_LOG_BYTES - 1))
    with running_supervisor(tmp_path) as supervisor:
        supervisor.start("sleeps", ("/bin/sleep", "100"))
        supervisor.wait_begun("sleeps")
        for _ in range(2):
            os.kill(supervisor.pid, signal.SIGTERM)
            wait_until(lambda: (tmp_path / "supervisor.log.1").exists(), what="the log is rotated")
        wait_until(log_file.exists, what="a new log is begun")

        assert (tmp_path / "supervisor.log.1").stat().st_size < MAX_LOG_BYTES + 1_000
        assert log_file.stat().st_size < 1_000
