"""Programs within walls: what they see, what they may do, and how they end."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.node.walls.walled import run, walled
from wharf.node.core.outcome import Outcome
from wharf.node.drivers.port import CannotStart, Given, GivenDevice, GivenVolume
from wharf.node.settings import ExecSettings
from wharf.node.supervisor.messages import RunEnded
from wharf.node.supervisor.run_folder import parse_outcome

pytestmark = pytest.mark.needs("namespaces")
SIGKILL = 9
NOBODY = 65534


def test_a_program_sees_its_own_folders_and_processes_and_no_others(tmp_path: Path) -> None:
    async def story() -> None:
        async with walled(tmp_path) as it:
            (it.task_folder("a") / "local" / "mine").write_text("mine\n")
            (tmp_path / "hidden").write_text("hidden\n")
            script = f"cat /local/mine; echo $$; ls /proc | grep -c '^[0-9]'; ls -d /* /dev/*; [ ! -e {tmp_path} ]"
            said = (await it.said_by("a", script)).split()
            # The shell itself, `ls` and `grep`.
            assert ["mine", "1", "3"] == said[:3]
            usual = {"/bin", "/etc", "/lib", "/lib64", "/lib32", "/sbin", "/usr", "/run"}
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
            assert own | {f"/dev/{name}" for name in devices} == set(said[3:]) - usual

    run(story())


def test_a_program_is_nobody_and_can_gain_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with walled(tmp_path) as it:
            said = await it.said_by(
                "a", "id -u; id -g; echo $USER $HOME; grep -E 'Cap(Prm|Bnd|Amb)|NoNewPrivs' /proc/self/status"
            )
            none = "0000000000000000"
            wanted = f"{NOBODY} {NOBODY} nobody /nonexistent CapPrm: {none} CapBnd: {none} CapAmb: {none} NoNewPrivs: 1"
            assert wanted.split() == said.split()

    run(story())


def test_nothing_but_its_own_folders_can_be_written_even_by_root(tmp_path: Path) -> None:
    places = ("/etc/x", "/usr/bin/x", "/proc/sys/kernel/panic", "/bin/sh")
    tries = "; ".join(f"(echo 1 >>{place}) 2>/dev/null && echo {place}" for place in places)
    tries += "; mount -o remount,rw /usr 2>/dev/null && echo mounted; mknod /local/disk b 8 0 2>/dev/null && echo mknod"
    tries += "; cd /proc/1/root && chroot . true 2>/dev/null; ls .. | grep -c usr; for f in local alloc tmp; do echo 1 >/$f/x; done"

    async def story() -> None:
        async with walled(tmp_path) as it:
            for name, user in (("a", "root"), ("b", "")):
                (it.task_folder(name).parent / "alloc").chmod(0o777)
                assert "1\n" == await it.said_by(name, tries, user=user)
                assert "1\n" == (tmp_path / name / "t" / "local" / "x").read_text()

    run(story())


def test_what_a_job_writes_into_the_environment_reaches_only_its_own_program(tmp_path: Path) -> None:
    """Before that everything runs as root: a library of the job's would do as it likes."""
    odd = {"LD_PRELOAD": "/local/evil.so", "a-b.c": "odd", "quoted": "it's\n$HOME `id`", "OPTIND": "1"}

    async def story() -> None:
        async with walled(tmp_path) as it:
            await it.begin("a", "", environment=odd, command="/usr/bin/env", args=[])
            assert Outcome(0) == await it.ended("a")
            said = set(it.output("a").splitlines())
            assert {"a-b.c=odd", "quoted=it's", "$HOME `id`", "OPTIND=1", "LD_PRELOAD=/local/evil.so"} <= said
            assert not {"LC_ALL=C", "WHARF_ALONE=1"} & said
            # The loader tells each program that cannot have it: those of the task.
            assert 1 <= it.output("a", "stderr").count("/local/evil.so") <= 3

    run(story())


@pytest.mark.needs("memory_bounds")
def test_bounds_hold_and_a_program_over_its_memory_is_told_as_that(tmp_path: Path) -> None:
    async def story() -> None:
        async with walled(tmp_path, ExecSettings(pids_limit=20)) as it:
            eats = "exec tail -n 1 /dev/zero"
            await it.begin("a", eats, given=Given(memory_mb=30))
            assert Outcome(128 + SIGKILL, SIGKILL, is_out_of_memory=True) == await it.ended("a")
            await it.begin("b", "for i in $(seq 40); do sleep 60 & done; echo all")
            assert "all" not in it.output("b")
            assert (await it.ended("b")).exit_code != 0
            assert "fork" in it.output("b", "stderr")

    run(story())


def test_with_its_first_process_all_others_end(tmp_path: Path) -> None:
    async def story() -> None:
        async with walled(tmp_path) as it:
            await it.begin("a", "setsid env -i sleep 1000 & sleep 1000 & exit 5")
            assert Outcome(5) == await it.ended("a")
            await it.gone("a")
            assert [] == [pid for pid in _pids_with("sleep\x001000\x00") if _root_of(pid) == str(tmp_path / "a" / "t")]

    run(story())


def test_a_signal_reaches_who_listens_and_a_kill_everybody(tmp_path: Path) -> None:
    async def story() -> None:
        async with walled(tmp_path) as it:
            await it.begin("a", "trap 'echo heard; exit 3' USR1; echo ready; while :; do sleep 0.01; done")
            await it.output_is("a", "ready\n")
            it.driver.signal("a", "SIGUSR1")
            assert Outcome(3) == await it.ended("a")
            await it.begin("b", "echo ready; exec sleep 1000")
            await it.output_is("b", "ready\n")
            it.driver.signal("b", "SIGINT")  # The kernel keeps it from a first process that does not ask for it.
            assert (0, "", "") == await it.beside("b", "true")
            it.driver.kill("b")
            assert Outcome(128 + SIGKILL, SIGKILL) == await it.ended("b")

    run(story())


def test_a_command_beside_it_is_within_the_same_walls(tmp_path: Path) -> None:
    async def story() -> None:
        async with walled(tmp_path) as it:
            await it.begin("a", "echo ready; exec sleep 1000", given=Given(memory_mb=50), cap_add=["net_bind_service"])
            await it.output_is("a", "ready\n")
            script = "id -u; pwd; cat /proc/1/comm; grep NoNewPrivs /proc/self/status; cut -d: -f3 /proc/self/cgroup | sort -u; touch /etc/x"
            code, said, also_said = await it.beside("a", "sh", "-c", f"{script}; exit 4")
            own = _groups_of(it.pid("a"))
            assert (4, [str(NOBODY), "/", "sleep", "NoNewPrivs:", "1", *own]) == (code, said.split())
            assert "Read-only file system" in also_said
            assert (127, "") == (await it.beside("a", "no-such-program"))[:2]
            code, said, _ = await it.beside("a", "sh", "-c", "[ -t 0 ] && stty size", is_tty=True)
            assert (0, "24 80") == (code, said.strip())
            assert it.pid("a") in it.driver.processes_of("a")

    run(story())


def test_a_command_beside_it_leads_the_session_of_its_terminal(tmp_path: Path) -> None:
    """So that a shell can put others in front, and what is typed interrupts those alone."""

    async def story() -> None:
        async with walled(tmp_path) as it:
            await it.begin("a", "echo ready; exec sleep 1000")
            await it.output_is("a", "ready\n")

            # Its number, its session, and who is in front, as they are seen within the walls.
            script = "set -- $(cat /proc/$$/stat); echo $1 $6 $8; (: </dev/tty) && kill -INT 0"
            code, said, _ = await it.beside("a", "sh", "-c", script, is_tty=True)

            assert 130 == code
            assert 1 == len(set(said.split()))

    run(story())


def test_a_volume_of_the_machine_is_where_it_is_wanted(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    (volume / "kept").write_text("kept\n")

    async def story() -> None:
        async with walled(tmp_path) as it:
            may = Given(volumes=(GivenVolume(str(volume), "/srv/it here", False),))
            assert "kept\n" == await it.said_by("a", "cat '/srv/it here/kept'; echo new >'/srv/it here/new'", given=may)
            assert "new\n" == (volume / "new").read_text()
            reads = Given(volumes=(GivenVolume(str(volume), "/srv", True),))
            assert "kept\nno\n" == await it.said_by(
                "b", "cat /srv/kept; touch /srv/x 2>/dev/null || echo no", given=reads
            )

    run(story())


def test_a_device_that_it_was_given_is_its_own(tmp_path: Path) -> None:
    async def story() -> None:
        async with walled(tmp_path) as it:
            may = Given(devices=(GivenDevice("/dev/zero", "/dev/of/mine", "r"),))
            script = "stat -c '%u %A' /dev/of/mine; head -c 3 /dev/of/mine | wc -c; sh -c ': >/dev/of/mine' 2>/dev/null || echo no"
            assert f"{NOBODY} cr--------\n3\nno\n" == await it.said_by("a", script, given=may)
            elsewhere = Given(devices=(GivenDevice("/dev/zero", "/srv/zero", "rwm"),))
            with pytest.raises(CannotStart, match="only below /dev, and not at /srv/zero"):
                await it.begin("b", "true", given=elsewhere)

    run(story())


def test_what_a_job_may_not_have_is_refused_with_the_reason(tmp_path: Path) -> None:
    wrong = {
        "cap_add": (["sys_admin"], "this node does not allow sys_admin"),
        "cap_drop": (["cap_nonsense"], "there is no capability nonsense"),
        "pid_mode": ("mine", "`pid_mode` is to be"),
        "command": ("/no/such", "there is no program /no/such in the task's root"),
    }

    async def story() -> None:
        async with walled(tmp_path) as it:
            for key, (value, why) in wrong.items():
                with pytest.raises(CannotStart, match=why):
                    await it.begin("a", "true", **{key: value})  # type: ignore[arg-type]  # wrong on purpose
            with pytest.raises(CannotStart, match="this machine has no user nosuchuser"):
                await it.begin("a", "true", user="nosuchuser")
            capable = await it.said_by("b", "grep CapEff /proc/self/status", cap_add=["CAP_NET_BIND_SERVICE"])
            assert "CapEff:\t0000000000000400\n" == capable
            in_view = await it.said_by("c", f"[ -d /proc/{os.getpid()} ] && echo all", pid_mode="host")
            assert "all\n" == in_view

    run(story())


def test_nothing_is_left_when_a_program_has_ended(tmp_path: Path) -> None:
    async def story() -> None:
        async with walled(tmp_path) as it:
            await it.begin("left-over", "sleep 1000", given=Given(memory_mb=20, cpu_mhz=100))
            groups = _groups("left-over")
            assert groups
            it.driver.kill("left-over")
            await it.ended("left-over")
            await it.gone("left-over")
            assert [] == [group for group in groups if group.exists()]
            assert str(tmp_path) not in _mounts()

    run(story())


def test_a_node_where_walls_cannot_be_made_says_why(tmp_path: Path) -> None:
    async def story() -> None:
        async with walled(tmp_path) as it:
            assert (await it.driver.probe()).is_healthy
            it.walls._works = False
            it.walls._folders = {"/etc": "/etc"}
            health = await it.driver.probe()
            assert not health.is_healthy
            assert "the folders of client.chroot_env lack /bin/dash" in health.why

    run(story())


def test_who_waits_for_the_program_can_write_its_end_down_when_there_is_room_again(tmp_path: Path) -> None:
    """The first process of a namespace ends, and with it all that its parent could still start."""
    shim = Path("src/wharf/node/supervisor/shim.sh").resolve()
    for pipe in ("out", "err", "news", "own"):
        os.mkfifo(tmp_path / pipe)
    (tmp_path / "outcome").mkdir()
    news = os.open(tmp_path / "news", os.O_RDWR)
    words = ["unshare", "--pid", "--", "/bin/dash", str(shim), str(tmp_path), "--", "/", "/bin/sh", "-c", "exit 9"]
    waits = subprocess.Popen(words, env={"WHARF_ALONE": "1", "PATH": "/bin:/usr/bin"}, stdin=subprocess.DEVNULL)
    try:
        assert b"started\n" == os.read(news, 100)
        while b"--ended" not in Path(f"/proc/{waits.pid}/cmdline").read_bytes():
            assert waits.poll() is None
        (tmp_path / "outcome").rmdir()
        assert b"ended\n" == os.read(news, 100)
        told = parse_outcome("r", (tmp_path / "outcome").read_text())
        assert told == RunEnded("r", 9)
    finally:
        waits.kill()
        waits.wait()
        os.close(news)


def _groups(run: str) -> list[Path]:
    own = f"wharf/walled-{os.getpid()}/{run}"
    return [found for tree in ("memory", "cpu", "pids", "") if (found := Path("/sys/fs/cgroup", tree, own)).exists()]


def _groups_of(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return sorted({line.split(":", 2)[2] for line in lines})


def _mounts() -> str:
    return Path("/proc/self/mounts").read_text()


def _pids_with(words: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cmdline").read_text() == words:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _root_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/root")
    except OSError:
        return ""


def test_walls_that_cannot_be_made_refuse_the_program_with_the_reason(tmp_path: Path) -> None:
    """As a device that is taken out: nobody can know before it is tried."""
    gone = Given(devices=(GivenDevice(str(tmp_path / "gone"), "/dev/gone", "rw"),))

    async def story() -> None:
        async with walled(tmp_path) as it:
            why = await it.refused("a", "echo here", given=gone)
            assert ("the walls around the task cannot be made: /dev/gone", "") == (why, it.output("a"))
            await it.gone("a")

    run(story())


def test_a_folder_to_work_in_that_is_not_there_is_told_by_name(tmp_path: Path) -> None:
    async def story() -> None:
        async with walled(tmp_path) as it:
            why = await it.refused("a", "echo here", work_dir="/nowhere")
            assert "the walls around the task cannot be made: work_dir /nowhere is no folder there" == why

    run(story())
