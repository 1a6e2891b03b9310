"""The driver `raw_exec`: programs of the machine as somebody else."""

import os
from pathlib import Path

import pytest

from tests.node.walls.walled import run, walled
from wharf.node.core.outcome import Outcome
from wharf.node.drivers import exec as walled_programs
from wharf.node.drivers.port import CannotStart, TaskNetwork
from wharf.node.drivers.raw_exec import CONFIG_KEYS, find_program, parse_program_config

NOBODY = 65534

needs_namespaces = pytest.mark.needs("namespaces")


@pytest.fixture
def way(tmp_path: Path) -> Path:
    """A folder that somebody else may go into, too."""
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    return tmp_path


def heeded_by(way: Path) -> set[int]:
    """Who it was that looked at the variables by which a program's libraries are chosen."""
    return {found.stat().st_uid for found in (way / "tmp").glob("loaded.*")}


def variables(way: Path) -> dict[str, str]:
    """The loader of every program that heeds them writes a file, as who it is."""
    (way / "tmp").mkdir()
    (way / "tmp").chmod(0o1777)
    return {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": str(way / "tmp" / "loaded")}


@needs_namespaces
def test_what_a_job_writes_into_the_environment_reaches_no_program_of_another_user(way: Path) -> None:
    """Before its own program everything runs as root: a library of the job's would do as it likes."""
    mine = variables(way)
    odd = {**mine, "a-b.c": "odd", "quoted": "it's\n$HOME `id`"}

    async def story() -> None:
        async with walled(way, is_raw=True) as it:
            await it.begin("a", "", user="nobody", environment=odd, command="/usr/bin/env", args=[])
            assert Outcome(0) == await it.ended("a")
            said = set(it.output("a").splitlines())
            assert {NOBODY} == heeded_by(way)
            assert {"a-b.c=odd", "quoted=it's", "$HOME `id`", f"LD_DEBUG_OUTPUT={way}/tmp/loaded"} <= said
            assert "LC_ALL=C" not in said

    run(story())


@needs_namespaces
def test_nor_does_that_of_a_command_beside_it_that_enters_its_network(way: Path) -> None:
    os_network = way / "network"
    mine = variables(way)

    async def story() -> None:
        async with walled(way, is_raw=True) as it:
            network = TaskNetwork(str(os_network), "", ())
            await it.begin("a", "echo here; exec sleep 60", user="nobody", network=network)
            await it.output_is("a", "here\n")
            code, said, _ = await it.beside("a", "sh", "-c", "id -u", environment=mine)
            assert (0, f"{NOBODY}\n", {NOBODY}) == (code, said, heeded_by(way))
            it.driver.kill("a")
            await it.ended("a")

    os_network.touch()
    assert 0 == os.spawnlp(os.P_WAIT, "unshare", "unshare", f"--net={os_network}", "true")
    try:
        run(story())
    finally:
        os.spawnlp(os.P_WAIT, "umount", "umount", str(os_network))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, "config: `command` is missing: the program to run"),
        ({"command": ["sh", "-c"]}, "config: `command` is to be a text: what follows the program stands in `args`"),
        ({"command": "sh", "arg": ["x"]}, "config: arg is no key of a raw_exec task: did you mean args?"),
        ({"command": "sh", "image": "x"}, "config: image is no key of a raw_exec task"),
        ({"command": "sh", "args": "x"}, "config: `args` is to be a list of texts"),
        ({"command": "sh", "work_dir": "x"}, "config: `work_dir` is to be an absolute path"),
    ],
)
def test_a_config_that_cannot_be_is_refused_for_good(config: dict[str, object], told: str) -> None:
    with pytest.raises(CannotStart) as refused:
        parse_program_config(config, CONFIG_KEYS, "raw_exec")

    assert (told, True) == (str(refused.value), refused.value.is_final)


def test_within_walls_it_has_the_keys_of_walls() -> None:
    config = {"command": "sh", "cap_add": [], "cap_drop": [], "pid_mode": "host", "ipc_mode": "host"}

    assert ("sh", [], "") == parse_program_config(config, walled_programs.CONFIG_KEYS, "exec")


def test_a_folder_is_told_from_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="is a folder, no program"):
        find_program(str(tmp_path), str(tmp_path), "")
    with pytest.raises(CannotStart, match=f"there is no program {tmp_path}/sh"):
        find_program("./sh", str(tmp_path), "")
