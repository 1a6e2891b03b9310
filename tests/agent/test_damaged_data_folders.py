"""Damaged files in the data folder of an agent: each start has all data, or ends with an error that names the file."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import RunningAgent, is_alive, kill_remaining_processes, lines, running
from tests.waiting import wait_until

BATCH_COUNT = 4


def write_config(folder: Path) -> Path:
    file = folder / "wharf.toml"
    file.write_text(
        f'name = "one"\ndata_dir = "{folder}/data"\n[ports]\nhttp = 0\n[server]\nenabled = true\n'
        "[client]\nenabled = true\nstop_on_shutdown = true\n[client.drivers.raw_exec]\nenabled = true\n"
    )
    return file


def build_job(name: str, type: str, command: str, *arguments: str) -> dict[str, object]:
    task = {
        "Name": "t",
        "Driver": "raw_exec",
        "Config": {"command": command, "args": list(arguments)},
        "Resources": {"CPU": 10, "MemoryMB": 16},
    }
    group = {"Name": "g", "Tasks": [task]}
    return {"Job": {"ID": name, "Type": type, "TaskGroups": [group]}}


def list_statuses(agent: RunningAgent) -> list[str]:
    allocations: Any = agent.get("/v1/allocations")
    return sorted(each["ClientStatus"] for each in allocations)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a killed agent with ended batch jobs."""
    folder = tmp_path_factory.mktemp("original")
    with running(folder, "agent", "--config", str(write_config(folder))) as agent:
        agent.wait_ready()
        for number in range(BATCH_COUNT):
            script = f"echo ran >> {folder}/ran-{number}"
            agent.put("/v1/jobs", build_job(f"batch-{number}", "batch", "/bin/sh", "-c", script))
        wait_until(
            lambda: list_statuses(agent) == ["complete"] * BATCH_COUNT, what="the batch jobs have ended", within_s=60
        )
        agent.process.send_signal(signal.SIGKILL)
        agent.wait_end()
    kill_remaining_processes(folder)
    return folder


@pytest.fixture
def folder(original: Path) -> Iterator[Path]:
    """A folder whose data are those of the original, at the same path: paths are stored in the data."""
    kept = original / "kept"
    if not kept.exists():
        shutil.copytree(original / "data", kept, symlinks=True, ignore=ignore_special_files)
    shutil.rmtree(original / "data", ignore_errors=True)
    shutil.copytree(kept, original / "data", symlinks=True)
    yield original
    kill_remaining_processes(original)


def ignore_special_files(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not (Path(folder, name).is_file() or Path(folder, name).is_dir())]


def empty(file: Path) -> None:
    file.write_bytes(b"")


def halve(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    if data:
        data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def start_and_judge(folder: Path, file: Path) -> str:
    """Start an agent on the data. Return `all data`, or the error with which it ended."""
    with running(folder, "agent", "--config", str(write_config(folder))) as agent:
        wait_until(lambda: agent.is_ready() or agent.process.poll() is not None, what="the agent is ready or has ended")
        if agent.process.poll() is None:
            jobs = wait_until(lambda: agent.get("/v1/jobs") or None, what="the jobs are still there")
            assert BATCH_COUNT == len(jobs) if isinstance(jobs, list) else False
            wait_until(lambda: any_ready(agent), what="a node is ready")
            agent.signal(signal.SIGTERM)
            agent.wait_end()
            outcome = "all data"
        else:
            assert agent.process.returncode == 1
            outcome = lines(agent.err)[-1]
            assert outcome.startswith("wharf: ")
            assert str(file) in outcome
        assert "Traceback" not in agent.err
    return outcome


def any_ready(agent: RunningAgent) -> bool:
    nodes: Any = agent.get("/v1/nodes")
    return any(node["Status"] == "ready" for node in nodes)


def list_runs(folder: Path) -> list[str]:
    return [file.read_text() for file in sorted(folder.glob("ran-*"))]


@pytest.mark.parametrize(
    ("name", "damage", "error"),
    [
        ("state/log.db", empty, "log.db is empty, but"),
        ("state/log.db", Path.unlink, "log.db is missing, but"),
        ("server-id", halve, "server-id is damaged"),
        ("node/node.json", halve, "node.json is damaged"),
    ],
)
def test_a_damaged_file_ends_the_agent_with_an_error_that_names_it(
    folder: Path, name: str, damage: Callable[[Path], None], error: str
) -> None:
    damage(folder / "data" / name)

    outcome = start_and_judge(folder, folder / "data" / Path(name).parent)

    assert error in outcome
    assert "delete" in outcome


def test_a_file_that_is_a_folder_ends_the_agent_with_an_error(folder: Path) -> None:
    file = folder / "data" / "node" / "journal"
    replace_by_folder(file)

    assert f"wharf: {file} is a folder: move it away" in start_and_judge(folder, file)


def test_a_truncated_journal_runs_no_task_again(folder: Path) -> None:
    halve(folder / "data" / "node" / "journal")

    assert "all data" == start_and_judge(folder, folder)
    assert ["ran\n"] * BATCH_COUNT == list_runs(folder)


def test_an_empty_cluster_begins_after_the_markers_were_deleted(folder: Path) -> None:
    shutil.rmtree(folder / "data" / "state")
    for name in ("cluster", "server-id"):
        (folder / "data" / name).unlink()
    with running(folder, "agent", "--config", str(write_config(folder))) as agent:
        agent.wait_ready()

        assert [] == agent.get("/v1/jobs")


def read_node_events(agent: RunningAgent) -> str:
    nodes: Any = agent.get("/v1/nodes")
    texts: list[Any] = [agent.get(f"/v1/node/{node['ID']}") for node in nodes]
    return " ".join(event["Message"] for node in texts for event in node["Events"])


@pytest.mark.faults
def test_a_running_task_survives_an_empty_cluster(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    config.write_text(config.read_text().replace("stop_on_shutdown = true", "stop_on_shutdown = false"))
    with running(tmp_path, "agent", "--config", str(config)) as agent:
        agent.wait_ready()
        agent.put(
            "/v1/jobs", build_job("web", "service", "/bin/sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 1000")
        )
        wait_until(lambda: list_statuses(agent) == ["running"], what="the service runs")
        pid_file = tmp_path / "pid"
        text = wait_until(lambda: pid_file.read_text() if pid_file.exists() else "", what="the task has written its id")
        task = int(text)
        agent.process.send_signal(signal.SIGKILL)
        agent.wait_end()
        wait_until(lambda: not any(map(is_alive, agent.known_children)), what="the processes of the agent have ended")
        shutil.rmtree(tmp_path / "data" / "state")
        for name in ("cluster", "server-id"):
            (tmp_path / "data" / name).unlink()
        with running(tmp_path, "agent", "--config", str(config)) as next_agent:
            next_agent.wait_ready()
            wait_until(
                lambda: "The servers belong to another cluster" in read_node_events(next_agent), what="it is reported"
            )
            next_agent.put("/v1/jobs", build_job("once", "batch", "/bin/true"))
            wait_until(lambda: list_statuses(next_agent) == ["complete"], what="the new cluster uses the node")

            assert is_alive(task)


@pytest.mark.parametrize("setting", ["state_dir", "alloc_dir"])
def test_two_agents_cannot_share_a_folder_of_their_nodes(tmp_path: Path, setting: str) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "wharf.toml").write_text(
            f'name = "{name}"\ndata_dir = "{tmp_path}/{name}/data"\n[ports]\nhttp = 0\n'
            f'[client]\nenabled = true\nservers = ["127.0.0.1:1"]\n{setting} = "{tmp_path}/shared"\n'
        )
    with running(tmp_path / "one", "agent", "--config", str(tmp_path / "one" / "wharf.toml")) as first:
        wait_until(lambda: first.children(), what="the first agent has locked its folders")
        with running(tmp_path / "two", "agent", "--config", str(tmp_path / "two" / "wharf.toml")) as second:
            assert 1 == second.wait_end()
            (line,) = lines(second.err)
    assert f"{tmp_path}/shared is in use by another" in line
    assert line.endswith(f"choose another folder with client.{setting}")


DAMAGED_FILES = (
    "agent.lock",
    "audit.log",
    "cluster",
    "keyring.key",
    "server-id",
    "state/log.db",
    "state/log.db-wal",
    "state/log.lock",
    "node/journal",
    "node/journal.end",
    "node/node.json",
    "node/agent.lock",
    "node/supervisor.lock",
    "node/supervisor.log",
)


@pytest.mark.faults
@pytest.mark.parametrize("damage", [empty, halve, flip, replace_by_folder])
@pytest.mark.parametrize("name", DAMAGED_FILES)
def test_each_damaged_file_leads_to_all_data_or_to_an_error(
    folder: Path, name: str, damage: Callable[[Path], None]
) -> None:
    file = folder / "data" / name
    if file.exists():
        damage(file)

    start_and_judge(folder, file.parent)

    assert ["ran\n"] * BATCH_COUNT == list_runs(folder)


@pytest.mark.faults
@pytest.mark.parametrize("part", range(0, 100, 5))
def test_a_flipped_byte_anywhere_in_the_log_leads_to_all_data_or_to_an_error(folder: Path, part: int) -> None:
    file = folder / "data" / "state" / "log.db"
    data = bytearray(file.read_bytes())
    data[len(data) * part // 100 + 17] ^= 0xFF
    file.write_bytes(data)

    start_and_judge(folder, file.parent)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("node/host_volumes.json", "[]"),
        *(pytest.param("node/host_volumes.json", content, marks=pytest.mark.faults) for content in ["", '{"a":', "\0"]),
        *(
            pytest.param("node/metadata.json", content, marks=pytest.mark.faults)
            for content in ["", '{"a":', "[]", "\0"]
        ),
    ],
)
def test_damaged_settings_of_the_node_lead_to_an_error(folder: Path, name: str, content: str) -> None:
    file = folder / "data" / name
    file.write_text(content)

    assert "is damaged" in start_and_judge(folder, file)


@pytest.mark.faults
@pytest.mark.parametrize("name", ["state", "node/runs", "alloc"])
def test_a_folder_that_is_a_file_leads_to_an_error(folder: Path, name: str) -> None:
    path = folder / "data" / name
    shutil.rmtree(path)
    path.write_text("junk")

    assert "is not a folder" in start_and_judge(folder, path)
