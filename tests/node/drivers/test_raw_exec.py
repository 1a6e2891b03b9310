"""The driver `raw_exec`: programs of the machine as somebody else."""

import os
from pathlib import Path

import pytest

from tests.node.walls.walled import run, walled
from wharf.node.core.outcome import Outcome
from wharf.node.drivers.port import TaskNetwork

NOBODY = 65534

pytestmark = [pytest.mark.needs("namespaces")]


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
