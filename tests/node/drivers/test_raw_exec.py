"""The driver `raw_exec`: its config, and programs that run as another user."""

import os
from pathlib import Path

import pytest

from tests.node.sandbox.driver_harness import run, running_harness
from wharf.node.core.outcome import Outcome
from wharf.node.drivers import exec as exec_driver
from wharf.node.drivers.port import CannotStart, TaskNetwork
from wharf.node.drivers.raw_exec import CONFIG_KEYS, find_program, parse_program_config

NOBODY = 65534

needs_namespaces = pytest.mark.needs("namespaces")


@pytest.fixture
def shared_folder(tmp_path: Path) -> Path:
    """Return a folder that other users can enter."""
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    return tmp_path


def list_affected_users(shared_folder: Path) -> set[int]:
    """Return the users of the programs that obeyed the variables of `build_loader_variables`."""
    return {found.stat().st_uid for found in (shared_folder / "tmp").glob("loaded.*")}


def build_loader_variables(shared_folder: Path) -> dict[str, str]:
    """Return variables that make the loader of each program write a file, as the program's user."""
    (shared_folder / "tmp").mkdir()
    (shared_folder / "tmp").chmod(0o1777)
    return {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": str(shared_folder / "tmp" / "loaded")}


@needs_namespaces
def test_the_environment_of_the_job_reaches_no_program_of_another_user(shared_folder: Path) -> None:
    """Programs before the task run as root: a library of the job would have their rights."""
    loader_variables = build_loader_variables(shared_folder)
    environment = {**loader_variables, "a-b.c": "odd", "quoted": "it's\n$HOME `id`"}

    async def test() -> None:
        async with running_harness(shared_folder, is_raw=True) as harness:
            await harness.start("a", "", user="nobody", environment=environment, command="/usr/bin/env", args=[])
            assert Outcome(0) == await harness.wait_ended("a")
            output = set(harness.output("a").splitlines())
            assert {NOBODY} == list_affected_users(shared_folder)
            assert {"a-b.c=odd", "quoted=it's", "$HOME `id`", f"LD_DEBUG_OUTPUT={shared_folder}/tmp/loaded"} <= output
            assert "LC_ALL=C" not in output

    run(test())


@needs_namespaces
def test_the_environment_of_a_command_reaches_no_program_of_another_user(shared_folder: Path) -> None:
    network_file = shared_folder / "network"
    loader_variables = build_loader_variables(shared_folder)

    async def test() -> None:
        async with running_harness(shared_folder, is_raw=True) as harness:
            network = TaskNetwork(str(network_file), "", ())
            await harness.start("a", "echo here; exec sleep 60", user="nobody", network=network)
            await harness.wait_output("a", "here\n")
            code, output, _ = await harness.run_command("a", "sh", "-c", "id -u", environment=loader_variables)
            assert (0, f"{NOBODY}\n", {NOBODY}) == (code, output, list_affected_users(shared_folder))
            harness.driver.kill(harness.full_name("a"))
            await harness.wait_ended("a")

    network_file.touch()
    assert 0 == os.spawnlp(os.P_WAIT, "unshare", "unshare", f"--net={network_file}", "true")
    try:
        run(test())
    finally:
        os.spawnlp(os.P_WAIT, "umount", "umount", str(network_file))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "config: `command` is missing: the program to run"),
        ({"command": ["sh", "-c"]}, "config: `command` must be a text: put arguments into `args`"),
        ({"command": "sh", "arg": ["x"]}, 'config: unknown key "arg" for driver raw_exec; did you mean "args"?'),
        ({"command": "sh", "image": "x"}, 'config: unknown key "image" for driver raw_exec'),
        ({"command": "sh", "args": "x"}, "config: `args` must be a list of texts"),
        ({"command": "sh", "work_dir": "x"}, "config: `work_dir` must be an absolute path"),
    ],
)
def test_an_invalid_config_is_a_final_error(config: dict[str, object], message: str) -> None:
    with pytest.raises(CannotStart) as error:
        parse_program_config(config, CONFIG_KEYS, "raw_exec")

    assert (message, True) == (str(error.value), error.value.is_final)


def test_options_of_nomad_that_change_nothing_are_ignored() -> None:
    config = {"command": "sh", "no_cgroups": True, "cgroup_v2_override": "x"}

    assert ("sh", [], "") == parse_program_config(config, CONFIG_KEYS, "raw_exec")


def test_the_driver_exec_accepts_the_keys_of_its_sandbox() -> None:
    config = {"command": "sh", "cap_add": [], "cap_drop": [], "pid_mode": "host", "ipc_mode": "host"}

    assert ("sh", [], "") == parse_program_config(config, exec_driver.CONFIG_KEYS, "exec")


def test_errors_distinguish_a_folder_from_a_missing_program(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="is a folder, not a program"):
        find_program(str(tmp_path), str(tmp_path), "")
    with pytest.raises(CannotStart, match=f"program {tmp_path}/sh does not exist"):
        find_program("./sh", str(tmp_path), "")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("slep", "program slep not found in PATH: write the full path of the program, or set PATH in env"),
        (
            "sleep infinity",
            'program "sleep infinity" not found in PATH: command is the program alone: write command = "sleep", and put the '
            "arguments into args",
        ),
    ],
)
def test_a_missing_program_is_reported_without_the_search_path(tmp_path: Path, command: str, message: str) -> None:
    with pytest.raises(CannotStart) as error:
        find_program(command, str(tmp_path), "/usr/bin:/bin:/usr/local/sbin")

    assert str(error.value) == message
