"""The open files that the programs of a real agent inherit: standard input, output and errors, and nothing else."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import RunningAgent, run, running
from tests.waiting import wait_until
from wharf.agent.data_folder import LOCK_FILE, DataFolder
from wharf.agent.errors import CommandError

LIST_SCRIPT = "(ls -l /proc/$$/fd); true"
"""Lists the open files of a shell."""
PLUGIN = """\
#!/bin/sh
# {name}
{list_script} >>{file}
echo '{{"version": "1"}}'
echo "CNI desk plugin v0.0.1" >&2
"""
CONFIG = """\
data_dir = "{folder}/data"
server.enabled = true
[state]
engine = "sqlite"
[client]
enabled = true
cni_path = "{folder}/cni"
host_volume_plugin_dir = "{folder}/volumes"
chroot_env = {{"/bin" = "/bin", "/lib" = "/lib", "/lib64" = "/lib64", "/usr" = "/usr", "/sbin" = "/sbin", "/etc" = "/etc"}}
drivers.raw_exec.enabled = true
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    folder = tmp_path_factory.mktemp("descriptors")
    write_plugin(folder / "volumes" / "shelf", folder / "volume.txt")
    write_plugin(folder / "cni" / "loopback", folder / "network.txt")
    (folder / "wharf.toml").write_text(CONFIG.format(folder=folder))
    # A file that the agent itself inherits must not reach its programs either.
    inherited = os.open(folder / "inherited.txt", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(inherited, True)
    with running(folder, "agent", "--config", "wharf.toml", "--port", "0", inherited_descriptors=(inherited,)) as agent:
        os.close(inherited)
        agent.wait_ready()
        yield agent


def write_plugin(path: Path, file: Path) -> None:
    path.parent.mkdir()
    path.write_text(PLUGIN.format(name=path.name, list_script=LIST_SCRIPT.replace("; true", ""), file=file))
    path.chmod(0o755)


def build_job(id: str, driver: str) -> dict[str, Any]:
    """Return a job with a prestart task, and a task with a script check; both print their open files."""
    config = {"command": "/bin/sh", "args": ["-c", LIST_SCRIPT]}
    check = {
        "Type": "script",
        "Name": "c",
        "Command": "/bin/sh",
        "Args": ["-c", LIST_SCRIPT.replace(";", ' >"$NOMAD_ALLOC_DIR/data/check.txt";')],
        "Interval": 1_000_000_000,
        "Timeout": 5_000_000_000,
    }
    shared = {
        "Driver": driver,
        "Resources": {"CPU": 1, "MemoryMB": 20},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
    }
    tasks = [
        {"Name": "hook", "Config": config, "Lifecycle": {"Hook": "prestart"}, **shared},
        {
            "Name": "main",
            "Config": {"command": "/bin/sh", "args": ["-c", LIST_SCRIPT + "; exec sleep 3600"]},
            "Services": [{"Name": id, "Provider": "wharf", "Checks": [check]}],
            **shared,
        },
    ]
    return {"ID": id, "TaskGroups": [{"Name": "g", "EphemeralDisk": {"SizeMB": 30}, "Tasks": tasks}]}


def start_job(agent: RunningAgent, id: str, driver: str) -> str:
    """Run the job and return the id of its allocation once its check has run."""
    agent.put("/v1/jobs", {"Job": build_job(id, driver)})
    ids: list[str] = []

    def has_checked() -> bool:
        allocations: Any = agent.get(f"/v1/job/{id}/allocations")
        ids[:] = [each["ID"] for each in allocations if each["ClientStatus"] == "running"]
        return bool(ids) and bool(read_check(agent, ids[0]))

    wait_until(has_checked, what="the check has run", within_s=60)
    return ids[0]


def read_check(agent: RunningAgent, allocation: str) -> str:
    """Return what the check printed; empty before it has run."""
    file = agent.folder / "data" / "alloc" / allocation / "alloc" / "data" / "check.txt"
    return file.read_text() if file.exists() else ""


def execute(agent: RunningAgent, allocation: str) -> str:
    result = run(
        agent.folder,
        *("alloc", "exec", "--task", "main", allocation, "/bin/sh", "-c", LIST_SCRIPT),
        environment={"WHARF_ADDR": agent.address},
    )
    assert 0 == result.returncode, result.stderr
    return result.stdout


def read_log(agent: RunningAgent, allocation: str, task: str) -> str:
    file = agent.folder / "data" / "alloc" / allocation / "alloc" / "logs" / f"{task}.stdout.0"
    return wait_until(lambda: file.read_text() if file.exists() else "", what=f"{task} has printed")


def list_open_files(text: str) -> list[str]:
    """Return the numbers of the open files in the output of LIST_SCRIPT, with the names of those that are not standard.

    The file of a shell script, which the shell itself has open, is left out.
    """
    words = [line.split() for line in text.splitlines() if "->" in line]
    files = {(number, target) for *_, number, _, target in words if not target.endswith(("/shelf", "/loopback"))}
    return sorted(number if number in STANDARD else f"{number} -> {target}" for number, target in files)


STANDARD = ["0", "1", "2"]


@pytest.mark.parametrize("driver", ["raw_exec", pytest.param("exec", marks=pytest.mark.needs("namespaces"))])
def test_tasks_hooks_checks_and_commands_inherit_no_other_open_file(agent: RunningAgent, driver: str) -> None:
    allocation = start_job(agent, driver.replace("_", "-"), driver)

    inherited = {
        "hook": list_open_files(read_log(agent, allocation, "hook")),
        "task": list_open_files(read_log(agent, allocation, "main")),
        "check": list_open_files(read_check(agent, allocation)),
        "command": list_open_files(execute(agent, allocation)),
    }

    assert dict.fromkeys(("hook", "task", "check", "command"), STANDARD) == inherited


@pytest.mark.parametrize("plugin", ["volume", "network"])
def test_plugins_inherit_no_other_open_file(agent: RunningAgent, plugin: str) -> None:
    assert STANDARD == list_open_files((agent.folder / f"{plugin}.txt").read_text())


def test_a_folder_whose_lock_file_was_deleted_stays_locked(tmp_path: Path) -> None:
    first, second = DataFolder(tmp_path), DataFolder(tmp_path)
    first.acquire(owner="another wharf")
    (tmp_path / LOCK_FILE).unlink()

    with pytest.raises(CommandError) as refused:
        second.acquire(owner="this one")

    first.release()
    assert f"the data folder {tmp_path} is in use by another process" in str(refused.value)
