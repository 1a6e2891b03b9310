"""Programs of the driver `exec`: the files and processes that they see, their permissions, and their end."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.sandbox.driver_harness import run, running_harness
from tests.waiting import wait_on_loop_until
from wharf.node.core.outcome import Outcome
from wharf.node.drivers.port import CannotStart, Given, GivenDevice, GivenVolume
from wharf.node.drivers.task_terminal import open_task_terminal
from wharf.node.settings import ExecSettings
from wharf.node.supervisor.messages import RunEnded
from wharf.node.supervisor.run_folder import parse_outcome

pytestmark = pytest.mark.needs("namespaces")
SIGKILL = 9
NOBODY = 65534


def test_a_program_sees_only_its_own_folders_and_processes(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            (harness.task_folder("a") / "local" / "mine").write_text("mine\n")
            (tmp_path / "hidden").write_text("hidden\n")
            script = f"cat /local/mine; echo $$; echo /proc/[0-9]*; ls -d /* /dev/*; [ ! -e {tmp_path} ]"
            output = (await harness.run_and_read_output("a", script)).split()
            assert ["mine", "1", "/proc/1"] == output[:3]
            standard_folders = {"/bin", "/etc", "/lib", "/lib64", "/lib32", "/sbin", "/usr", "/run"}
            devices = {
                "fd",
                "full",
                "null",
                "ptmx",
                "pts",
                "random",
                "shm",
                "stderr",
                "stdin",
                "stdout",
                "tty",
                "urandom",
                "zero",
            }
            own = {"/alloc", "/dev", "/local", "/proc", "/secrets", "/tmp"}
            assert own | {f"/dev/{name}" for name in devices} == set(output[3:]) - standard_folders

    run(test())


def test_a_program_runs_as_nobody_without_capabilities(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            output = await harness.run_and_read_output(
                "a", "id -u; id -g; echo $USER $HOME; grep -E 'Cap(Prm|Bnd|Amb)|NoNewPrivs' /proc/self/status"
            )
            no_capabilities = "0000000000000000"
            expected = f"{NOBODY} {NOBODY} nobody /local CapPrm: {no_capabilities} CapBnd: {no_capabilities} CapAmb: {no_capabilities} NoNewPrivs: 1"
            assert expected.split() == output.split()

    run(test())


def test_even_root_can_write_only_to_the_folders_of_the_task(tmp_path: Path) -> None:
    paths = ("/etc/x", "/usr/bin/x", "/proc/sys/kernel/panic", "/bin/sh")
    attempts = "; ".join(f"(echo 1 >>{path}) 2>/dev/null && echo {path}" for path in paths)
    attempts += (
        "; mount -o remount,rw /usr 2>/dev/null && echo mounted; mknod /local/disk b 8 0 2>/dev/null && echo mknod"
    )
    attempts += "; cd /proc/1/root && chroot . true 2>/dev/null; ls .. | grep -c usr; for f in local alloc tmp; do echo 1 >/$f/x; done"

    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            for name, user in (("a", "root"), ("b", "")):
                (harness.task_folder(name).parent / "alloc").chmod(0o777)
                assert "1\n" == await harness.run_and_read_output(name, attempts, user=user)
                assert "1\n" == (tmp_path / name / "t" / "local" / "x").read_text()

    run(test())


def test_the_environment_of_the_job_reaches_only_its_own_program(tmp_path: Path) -> None:
    """Programs before the task run as root: a library of the job would have their rights."""
    environment = {"LD_PRELOAD": "/local/evil.so", "a-b.c": "odd", "quoted": "it's\n$HOME `id`", "OPTIND": "1"}

    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            await harness.start("a", "", environment=environment, command="/usr/bin/env", args=[])
            assert Outcome(0) == await harness.wait_ended("a")
            output = set(harness.output("a").splitlines())
            assert {"a-b.c=odd", "quoted=it's", "$HOME `id`", "OPTIND=1", "LD_PRELOAD=/local/evil.so"} <= output
            assert not {"LC_ALL=C", "WHARF_ALONE=1"} & output
            # The loader reports each program that cannot load it: only programs of the task.
            assert 1 <= harness.output("a", "stderr").count("/local/evil.so") <= 3

    run(test())


@pytest.mark.needs("memory_bounds")
def test_a_task_starts_with_the_least_memory_that_a_job_may_request(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            assert "here\n" == await harness.run_and_read_output("a", "echo here", given=Given(memory_mb=10))

    run(test())


def test_a_program_behind_a_link_is_searched_in_the_sandbox_only(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            local = harness.task_folder("a") / "local"
            (local / "own").mkdir()
            (local / "own" / "sh").symlink_to("/bin/sh")
            (local / "current").symlink_to("/local/own")
            assert "here\n" == await harness.run_and_read_output("a", "echo here", command="/local/current/sh")
            # Whether the machine has the file makes no difference.
            (tmp_path / "outside").mkdir()
            (tmp_path / "outside" / "x").write_text("")
            for name in ("x", "missing"):
                (harness.task_folder(name) / "local" / "out").symlink_to(tmp_path / "outside")
                await harness.start(name, "true", command=f"/local/out/{name}")
                assert Outcome(127) == await harness.wait_ended(name)

    run(test())


@pytest.mark.needs("memory_bounds")
def test_limits_are_enforced_and_lack_of_memory_is_reported(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_harness(tmp_path, ExecSettings(pids_limit=20)) as harness:
            uses_all_memory = "exec tail -n 1 /dev/zero"
            await harness.start("a", uses_all_memory, given=Given(memory_mb=30))
            assert Outcome(128 + SIGKILL, SIGKILL, is_out_of_memory=True) == await harness.wait_ended("a")
            await harness.start("b", "for i in $(seq 40); do sleep 60 & done; echo all")
            assert "all" not in harness.output("b")
            assert (await harness.wait_ended("b")).exit_code != 0
            assert "fork" in harness.output("b", "stderr")

    run(test())


@pytest.mark.needs("memory_bounds")
def test_a_task_that_may_use_all_memory_of_its_node_starts_without_a_memory_limit(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            allocates = "head -c 60m /dev/zero | tail -n 1 | wc -c"
            unlimited = Given(memory_mb=30, memory_max_mb=-1)
            assert f"{60 << 20}\n" == await harness.run_and_read_output("a", allocates, given=unlimited)

    run(test())


def test_all_processes_end_with_the_first_process(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            await harness.start("a", "setsid env -i sleep 1000 & sleep 1000 & exit 5")
            assert Outcome(5) == await harness.wait_ended("a")
            await harness.forget_and_wait("a")
            assert [] == [
                pid for pid in _list_pids_with("sleep\x001000\x00") if _read_root(pid) == str(tmp_path / "a" / "t")
            ]

    run(test())


def test_a_program_receives_signals_and_can_be_killed(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            await harness.start("a", "trap 'echo heard; exit 3' USR1; echo ready; while :; do sleep 0.01; done")
            await harness.wait_output("a", "ready\n")
            harness.driver.signal(harness.full_name("a"), "SIGUSR1")
            assert Outcome(3) == await harness.wait_ended("a")
            await harness.start("b", "echo ready; exec sleep 1000")
            # Until then the shell runs, which has a handler for SIGINT.
            name_file = Path(f"/proc/{harness.pid('b')}/comm")
            await wait_on_loop_until(lambda: name_file.read_text() == "sleep\n", what="the task has become sleep")
            # The kernel ignores a signal without a handler for the first process of a namespace.
            harness.driver.signal(harness.full_name("b"), "SIGINT")
            assert (0, "", "") == await harness.run_command("b", "true")
            harness.driver.kill(harness.full_name("b"))
            assert Outcome(128 + SIGKILL, SIGKILL) == await harness.wait_ended("b")

    run(test())


def test_a_command_runs_in_the_sandbox_of_its_task(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            await harness.start(
                "a", "echo ready; exec sleep 1000", given=Given(memory_mb=50), cap_add=["net_bind_service"]
            )
            await harness.wait_output("a", "ready\n")
            script = "id -u; pwd; cat /proc/1/comm; grep NoNewPrivs /proc/self/status; cut -d: -f3 /proc/self/cgroup | sort -u; touch /etc/x"
            code, output, errors = await harness.run_command("a", "sh", "-c", f"{script}; exit 4")
            own = _list_groups_of(harness.pid("a"))
            assert (4, [str(NOBODY), "/", "sleep", "NoNewPrivs:", "1", *own]) == (code, output.split())
            assert "Read-only file system" in errors
            assert (127, "") == (await harness.run_command("a", "no-such-program"))[:2]
            code, output, _ = await harness.run_command("a", "sh", "-c", "[ -t 0 ] && stty size", is_tty=True)
            assert (0, "24 80") == (code, output.strip())
            assert harness.pid("a") in harness.driver.processes_of(harness.full_name("a"))

    run(test())


def test_a_command_with_a_terminal_is_a_session_leader(tmp_path: Path) -> None:
    """A shell can then have foreground processes, which Ctrl-C interrupts."""

    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            await harness.start("a", "echo ready; exec sleep 1000")
            await harness.wait_output("a", "ready\n")

            # Process id, session and foreground group, as seen in the sandbox.
            script = "set -- $(cat /proc/$$/stat); echo $1 $6 $8; (: </dev/tty) && kill -INT 0"
            code, output, _ = await harness.run_command("a", "sh", "-c", script, is_tty=True)

            assert 130 == code
            assert 1 == len(set(output.split()))

    run(test())


def test_a_command_with_a_terminal_has_one_with_a_name_in_the_sandbox(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            await harness.start("a", "echo ready; exec sleep 1000")
            await harness.wait_output("a", "ready\n")

            code, output, _ = await harness.run_command(
                "a", "sh", "-c", "tty; echo again >$(tty); stty size", is_tty=True
            )

            assert (0, ["/dev/pts/0", "again", "24", "80"]) == (code, output.split())

    run(test())


def test_the_home_of_a_task_is_a_folder_where_it_can_write(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            script = "cd && touch written && ls; echo $HOME; echo ready; exec sleep 1000"
            await harness.start("a", script)
            await harness.wait_output("a", "written\n/local\nready\n")

            assert (0, "/local\n", "") == await harness.run_command("a", "sh", "-c", "echo $HOME")

    run(test())


def make_host_link(path: Path) -> None:
    path.symlink_to("/dev/ptmx")


@pytest.mark.parametrize("exchange", [make_host_link, Path.touch, os.mkfifo])
def test_a_terminal_is_not_opened_where_a_task_has_put_something_else(
    tmp_path: Path, exchange: Callable[[Path], None]
) -> None:
    """A task may be root in its sandbox, and could exchange what its own `/dev` contains."""
    (tmp_path / "dev" / "pts").mkdir(parents=True)
    exchange(tmp_path / "dev" / "pts" / "ptmx")

    with pytest.raises(FileNotFoundError):
        open_task_terminal(str(tmp_path))


def test_a_host_volume_is_mounted_at_its_destination(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    (volume / "kept").write_text("kept\n")

    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            granted = Given(volumes=(GivenVolume(str(volume), "/srv/it here", False),))
            assert "kept\n" == await harness.run_and_read_output(
                "a", "cat '/srv/it here/kept'; echo new >'/srv/it here/new'", given=granted
            )
            assert "new\n" == (volume / "new").read_text()
            read_only = Given(volumes=(GivenVolume(str(volume), "/srv", True),))
            assert "kept\nno\n" == await harness.run_and_read_output(
                "b", "cat /srv/kept; touch /srv/x 2>/dev/null || echo no", given=read_only
            )

    run(test())


def test_an_allocated_device_belongs_to_the_user_of_the_task(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            granted = Given(devices=(GivenDevice("/dev/zero", "/dev/of/mine", "r"),))
            script = "stat -c '%u %A' /dev/of/mine; head -c 3 /dev/of/mine | wc -c; sh -c ': >/dev/of/mine' 2>/dev/null || echo no"
            assert f"{NOBODY} cr--------\n3\nno\n" == await harness.run_and_read_output("a", script, given=granted)
            outside_dev = Given(devices=(GivenDevice("/dev/zero", "/srv/zero", "rwm"),))
            with pytest.raises(CannotStart, match="must be below /dev, not at /srv/zero"):
                await harness.start("b", "true", given=outside_dev)

    run(test())


def test_an_invalid_or_forbidden_config_is_refused_with_the_reason(tmp_path: Path) -> None:
    invalid = {
        "cap_add": (["sys_admin"], "this node does not allow sys_admin"),
        "cap_drop": (["cap_nonsense"], "unknown capability nonsense"),
        "pid_mode": ("mine", "`pid_mode` must be"),
        "ipc_mode": (
            "host",
            '`ipc_mode` = "host" is not allowed on this node; leave it out, or ask the operator to set',
        ),
        "command": ("/no/such", "program /no/such does not exist in the task's root filesystem"),
    }

    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            for key, (value, reason) in invalid.items():
                with pytest.raises(CannotStart, match=reason):
                    await harness.start("a", "true", **{key: value})  # type: ignore[arg-type]  # invalid on purpose
            with pytest.raises(CannotStart, match="user nosuchuser does not exist on this machine"):
                await harness.start("a", "true", user="nosuchuser")
            capabilities = await harness.run_and_read_output(
                "b", "grep CapEff /proc/self/status", cap_add=["CAP_NET_BIND_SERVICE"]
            )
            assert "CapEff:\t0000000000000400\n" == capabilities

    run(test())


@pytest.mark.parametrize(
    "settings",
    [ExecSettings(allow_host_namespaces=True), ExecSettings(default_pid_mode="host")],
    ids=["allowed", "default"],
)
def test_a_task_sees_the_processes_of_the_host_if_the_operator_allows_it(
    tmp_path: Path, settings: ExecSettings
) -> None:
    async def test() -> None:
        async with running_harness(tmp_path, settings) as harness:
            output = await harness.run_and_read_output("c", f"[ -d /proc/{os.getpid()} ] && echo all", pid_mode="host")
            assert "all\n" == output
            attributes = (await harness.driver.probe()).attributes
            is_allowed = "true" if settings.allow_host_namespaces else "false"
            assert ("true", is_allowed) == (attributes["driver.exec.host_pid"], attributes["driver.exec.host_ipc"])

    run(test())


@pytest.mark.parametrize("user", ["", "root"])
def test_a_task_reads_neither_environment_nor_files_of_another_task_of_its_user(tmp_path: Path, user: str) -> None:
    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            (harness.task_folder("victim") / "secrets" / "db").write_text("hunter2")
            await harness.start(
                "victim", "echo ready; exec sleep 1000", user=user, environment={"WHARF_TOKEN": "hunter2"}
            )
            await harness.wait_output("victim", "ready\n")
            with pytest.raises(CannotStart, match='`pid_mode` = "host" is not allowed on this node'):
                await harness.start("host", "true", user=user, pid_mode="host")
            # The shell itself lists the processes, because it starts the programs of a pipe one after the other.
            script = "cd /proc; cat [0-9]*/environ [0-9]*/'root'/secrets/* 2>/dev/null | grep -c hunter2; echo [0-9]*"
            await harness.start("thief", script, user=user)
            await harness.wait_ended("thief")
            assert "0\n1\n" == harness.output("thief")

    run(test())


def test_control_groups_and_mounts_are_removed_after_the_end(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            await harness.start("forgotten", "sleep 1000", given=Given(memory_mb=20, cpu_mhz=100))
            groups = _list_groups(harness.full_name("forgotten"))
            assert groups
            harness.driver.kill(harness.full_name("forgotten"))
            await harness.wait_ended("forgotten")
            await harness.forget_and_wait("forgotten")
            assert [] == [group for group in groups if group.exists()]
            assert str(tmp_path) not in _read_mounts()

    run(test())


def test_a_node_that_cannot_set_up_sandboxes_reports_why(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            assert (await harness.driver.probe()).is_healthy
            harness.sandbox_driver._is_trial_passed = False
            harness.sandbox_driver._host_folders = {"/etc": "/etc"}
            health = await harness.driver.probe()
            assert not health.is_healthy
            assert "the folders of client.chroot_env lack /bin/dash" in health.why

    run(test())


def test_the_shim_records_the_outcome_once_it_can_be_written(tmp_path: Path) -> None:
    """After the end of a PID namespace, the shim cannot start processes until it enters its own namespace."""
    shim = Path("src/wharf/node/supervisor/shim.sh").resolve()
    for pipe in ("out", "err", "news", "own"):
        os.mkfifo(tmp_path / pipe)
    (tmp_path / "outcome").mkdir()
    notifications = os.fdopen(os.open(tmp_path / "news", os.O_RDWR), "rb", buffering=0)
    command = ["unshare", "--pid", "--", "/bin/dash", str(shim), str(tmp_path), "--", "/", "/bin/sh", "-c", "exit 9"]
    shim_process = subprocess.Popen(
        command, env={"WHARF_ALONE": "1", "PATH": "/bin:/usr/bin"}, stdin=subprocess.DEVNULL
    )
    try:
        assert b"started\n" == notifications.readline()
        while b"--ended" not in Path(f"/proc/{shim_process.pid}/cmdline").read_bytes():
            assert shim_process.poll() is None
        (tmp_path / "outcome").rmdir()
        assert b"ended\n" == notifications.readline()
        outcome = parse_outcome("r", (tmp_path / "outcome").read_text())
        assert outcome == RunEnded("r", 9)
    finally:
        shim_process.kill()
        shim_process.wait()
        notifications.close()


def _list_groups(run: str) -> list[Path]:
    own = f"wharf/harness-{os.getpid()}/{run}"
    return [found for tree in ("memory", "cpu", "pids", "") if (found := Path("/sys/fs/cgroup", tree, own)).exists()]


def _list_groups_of(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return sorted({line.split(":", 2)[2] for line in lines})


def _read_mounts() -> str:
    return Path("/proc/self/mounts").read_text()


def _list_pids_with(command_line: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cmdline").read_text() == command_line:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _read_root(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/root")
    except OSError:
        return ""


def test_a_failed_sandbox_setup_is_reported_with_the_reason(tmp_path: Path) -> None:
    """A missing device is detected only when the sandbox is set up."""
    missing_device = Given(devices=(GivenDevice(str(tmp_path / "gone"), "/dev/gone", "rw"),))

    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            reason = await harness.read_refusal("a", "echo here", given=missing_device)
            expected = "the task's sandbox cannot be set up: device /dev/gone: No such file or directory"
            assert (expected, "") == (reason, harness.output("a"))
            await harness.forget_and_wait("a")

    run(test())


def test_a_missing_work_folder_is_reported_by_name(tmp_path: Path) -> None:
    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            reason = await harness.read_refusal("a", "echo here", work_dir="/nowhere")
            assert "the task's sandbox cannot be set up: work_dir /nowhere is not a folder in the sandbox" == reason

    run(test())
