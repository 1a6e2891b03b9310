"""Mounts of a sandbox: no link of a task leads them elsewhere, and no program in them runs as root."""

import shutil
from pathlib import Path

import pytest

from tests.node.sandbox.driver_harness import DriverHarness, run, running_harness
from wharf.node.drivers.port import CannotStart, Given, GivenVolume

pytestmark = pytest.mark.needs("namespaces")
NOBODY = 65534
REPLACED_PROGRAMS = ("chmod", "chown", "cp", "ln", "mkdir", "mount", "nsenter", "setpriv", "setsid", "umount")
RECORD_USER = """#!/usr/bin/dash
while read -r key user rest; do [ "$key" = Uid: ] && echo "$user" >>/alloc/users; done </proc/self/status
"""
"""A script that needs no program: it appends the number of its user to a file."""


def make_folder(path: Path) -> Path:
    """Create a folder in which every user may write."""
    path.mkdir(parents=True)
    path.chmod(0o777)
    return path


def make_shared_data(harness: DriverHarness, name: str) -> Path:
    """Create the folder `data` that the tasks of an allocation share."""
    shared = harness.task_folder(name).parent / "alloc"
    shared.chmod(0o777)
    return make_folder(shared / "data")


def give(*volumes: tuple[Path, str]) -> Given:
    """Return writable volumes: a folder of the host, and its path in the task."""
    return Given(volumes=tuple(GivenVolume(str(folder), target, False) for folder, target in volumes))


def test_a_mount_does_not_follow_a_link_that_another_task_has_left(tmp_path: Path) -> None:
    outside, volume = make_folder(tmp_path / "outside"), make_folder(tmp_path / "volume")

    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            (make_shared_data(harness, "a") / "vol").symlink_to(outside)
            reason = await harness.read_refusal("a", "echo here", given=give((volume, "/alloc/data/vol")))
            assert (
                "the task's sandbox cannot be set up: nothing can be mounted at /alloc/data/vol: a link is in the way"
                == reason
            )
            (volume / "sub").symlink_to(outside)
            reason = await harness.read_refusal("b", "echo here", given=give((volume, "/srv"), (volume, "/srv/sub")))
            assert reason.endswith("nothing can be mounted at /srv/sub: a link is in the way")
            assert [] == list(outside.iterdir())

    run(test())


def test_a_link_in_the_folder_of_the_task_is_replaced_by_the_mount_point(tmp_path: Path) -> None:
    outside, volume = make_folder(tmp_path / "outside"), make_folder(tmp_path / "volume")

    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            for name in ("srv", "alloc", "dev", "proc"):
                (harness.task_folder("a") / name).symlink_to(outside)
            await harness.run_and_read_output("a", "echo new >/srv/deep/new", given=give((volume, "/srv/deep")))
            assert ("new\n", []) == ((volume / "new").read_text(), list(outside.iterdir()))

    run(test())


def test_volumes_are_mounted_inside_of_other_volumes_and_shared_folders(tmp_path: Path) -> None:
    outer, inner = make_folder(tmp_path / "outer"), make_folder(tmp_path / "inner")

    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            make_shared_data(harness, "a")
            granted = give((inner, "/srv/in/side"), (outer, "/srv"), (inner, "/alloc/data/vol"))
            script = "echo 1 >/srv/x; echo 2 >/srv/in/side/y; cat /alloc/data/vol/y"
            assert "2\n" == await harness.run_and_read_output("a", script, given=granted)
            assert (["in", "x"], ["y"]) == tuple(sorted(e.name for e in each.iterdir()) for each in (outer, inner))

    run(test())


def test_no_program_of_a_volume_runs_with_other_rights_than_the_task(tmp_path: Path) -> None:
    programs = make_folder(tmp_path / "programs")
    shutil.copy("/bin/dash", programs / "dash")
    shutil.copy("/bin/dash", programs / "sh")
    for name in REPLACED_PROGRAMS:
        (programs / name).write_text(f'{RECORD_USER}exec "$@"\n')
        (programs / name).chmod(0o755)

    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            make_shared_data(harness, "a")
            await harness.start(
                "a", "echo ready; while :; do read -r line; done </dev/zero", given=give((programs, "/usr/bin"))
            )
            await harness.wait_output("a", "ready\n")
            # `setsid` of the volume is the first program that runs.
            users = tmp_path / "a" / "alloc" / "users"
            assert f"{NOBODY}\n" == users.read_text()
            assert (0, "", "") == await harness.run_command("a", "/usr/bin/setpriv", "/usr/bin/dash", "-c", ":")
            assert {str(NOBODY)} == set(users.read_text().split())

    run(test())


def test_nothing_can_cover_the_list_of_processes(tmp_path: Path) -> None:
    volume = make_folder(tmp_path / "volume")

    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            for target in ("/proc", "/proc/self", "/tmp/../proc/sys", "//"):
                with pytest.raises(CannotStart, match="nothing can be mounted at"):
                    await harness.start("a", "true", given=give((volume, target)))

    run(test())


def test_a_read_only_volume_stays_read_only_inside_of_a_writable_one(tmp_path: Path) -> None:
    outer, inner = make_folder(tmp_path / "outer"), make_folder(tmp_path / "inner")

    async def test() -> None:
        async with running_harness(tmp_path) as harness:
            volumes = (GivenVolume(str(outer), "/srv", False), GivenVolume(str(inner), "/srv/in", True))
            script = "touch /srv/x; touch /srv/in/x 2>/dev/null || echo no; grep -c ' /srv/in ro,nosuid,nodev' /proc/self/mountinfo"
            assert "no\n1\n" == await harness.run_and_read_output("a", script, given=Given(volumes=volumes))

    run(test())
