"""The process tree of an agent: real processes, real signals, and the files that remain after them."""

import asyncio
import json
import os
import signal
import socket
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import RunningAgent, is_alive, lines, role_of, run, running, sockets_in
from tests.cluster.engines.contract import commit, put
from tests.waiting import wait_until
from wharf.agent.startup import API_SILENCE_LIMITS, NODE_SILENCE_LIMITS
from wharf.agent.supervision.activity import SilenceLimits
from wharf.cluster.engines.port import EncodedChange
from wharf.cluster.engines.sqlite.engine import SqliteEngine
from wharf.cluster.state.codec import encode_record
from wharf.cluster.state.tables import CLUSTER_FORMAT
from wharf.contract.model.cluster import RecordFormat
from wharf.world import RealWorld

DEV = ("dev", "--port", "0")


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    """One agent for all tests that do not end it. Some kill one of its children."""
    with running(tmp_path_factory.mktemp("dev") / "a", *DEV) as agent:
        agent.wait_ready()
        yield agent


def test_dev_prints_addresses_and_first_commands(dev: RunningAgent) -> None:
    assert "Wharf 0.1.0 is running" in dev.out
    assert "in .wharf/state" in dev.out
    assert "runs tasks on this machine, drivers raw_exec" in dev.out
    assert ("docker" in dev.out.partition("drivers raw_exec")[2].partition("\n")[0]) != ("docker (" in dev.out)
    output_lines = [line.strip() for line in lines(dev.out)]
    assert f"export WHARF_ADDR={dev.address}" in output_lines
    assert [line.partition("-m wharf ")[2] for line in output_lines if "-m wharf " in line] == [
        "job init",
        "job run example.yaml",
        "status",
    ]
    assert f"{dev.address}/ui/" in dev.out.partition("Pages")[2].partition("\n")[0]
    assert "Access" not in dev.out


HEALTH_ATTEMPTS = 3


@pytest.mark.parametrize("role", ["store", "brain"])
def test_health_is_500_within_3_s_while_a_process_does_not_answer(dev: RunningAgent, role: str) -> None:
    wait_until(lambda: read_health(dev)[0] == 200, what="the agent is healthy")
    pid = dev.child(role)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        # The best of several attempts counts: on a busy machine, each process of the agent may wait for a core.
        for _ in range(HEALTH_ATTEMPTS):
            began_s = time.monotonic()
            status, report = read_health(dev)
            duration_s = time.monotonic() - began_s
            if duration_s < 3.0:
                break
    finally:
        os.kill(pid, signal.SIGCONT)

    assert (status, report["server"]["ok"], duration_s < 3.0) == (500, False, True)
    wait_until(lambda: read_health(dev)[0] == 200, what="the agent is healthy again")


def read_health(agent: RunningAgent) -> tuple[int, Any]:
    """Return status and body of the health of the agent's server."""
    try:
        with urllib.request.urlopen(f"{agent.address}/v1/agent/health?type=server", timeout=20) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_a_node_beside_a_server_shows_the_address_of_the_agent(dev: RunningAgent) -> None:
    nodes: Any = wait_until(lambda: dev.get("/v1/nodes"), what="the node has registered")
    read: Any = dev.get(f"/v1/node/{nodes[0]['ID']}")

    host, _, port = dev.address.removeprefix("http://").partition(":")
    assert (nodes[0]["Address"], read["HTTPAddr"]) == (host, f"{host}:{port}")


def test_dev_serves_a_cluster_with_a_node(dev: RunningAgent) -> None:
    nodes = wait_until(lambda: dev.get("/v1/nodes"), what="the node has registered")

    assert isinstance(nodes, list)
    assert len(nodes) == 1


A_JOB = {"Job": {"ID": "hello", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock"}]}]}}


def test_a_job_is_placed_and_its_registration_is_in_the_audit_log(dev: RunningAgent) -> None:
    dev.put("/v1/jobs", A_JOB)

    placed = wait_until(lambda: dev.get("/v1/job/hello/allocations"), what="the job is placed")
    assert isinstance(placed, list)
    assert len(placed) == 1
    audit = [json.loads(line) for line in lines((dev.folder / ".wharf" / "audit.log").read_text())]
    (entry,) = [entry for entry in audit if entry["endpoint"] == "job.register"]
    assert (entry["path"], entry["source"], entry["status"]) == ("/v1/jobs", "127.0.0.1", 200)
    assert entry["index"] > 0
    assert "node.heartbeat" not in {entry["endpoint"] for entry in audit}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_processes(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path / "a", *DEV) as agent:
        agent.wait_ready()
        children = agent.children()
        # Some time after its start, the agent adopts the supervisor of tasks.
        roles = sorted(role_of(pid) for pid in children if not is_task_supervisor(pid))
        agent.signal(number)

        assert agent.wait_end() == 0, agent.out + agent.err
        assert roles == ["", "api", "brain", "node", "store"]  # The first is the fork server.
        assert [pid for pid in children if is_alive(pid)] == []
        assert sockets_in(agent.folder) == []
        assert "Traceback" not in agent.err


def is_task_supervisor(pid: int) -> bool:
    return b"wharf.node.supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    """An agent whose parent process was killed. Its children are in `known_children`."""
    with running(tmp_path_factory.mktemp("killed") / "a", *DEV) as agent:
        agent.wait_ready()
        agent.children()
        agent.signal(signal.SIGKILL)
        agent.wait_end()
        yield agent


def wait_for_ended_children(agent: RunningAgent) -> None:
    wait_until(lambda: not any(map(is_alive, agent.known_children)), what="the children have ended")


def test_children_end_when_their_parent_is_killed(killed: RunningAgent) -> None:
    assert len(killed.known_children) >= 5
    wait_for_ended_children(killed)


def test_data_survives_a_killed_parent_process(killed: RunningAgent) -> None:
    wait_for_ended_children(killed)
    with running(killed.folder, *DEV) as agent:
        agent.wait_ready()

        assert "bootstrapped cluster" not in agent.err


@pytest.mark.parametrize("role", ["store", "brain", "api", "node"])
def test_a_process_that_dies_is_restarted_alone(dev: RunningAgent, role: str) -> None:
    before = {pid for pid in dev.children() if pid != dev.child(role)}
    pid = dev.child(role)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    new_pid = wait_until(lambda: (now := dev.child(role)) != pid and now, what=f"{role} was started again")

    assert new_pid != pid
    assert before <= set(dev.children())
    assert f"process ended; restarting it process={role} delay_s=0.1 cause=killed by SIGKILL" in dev.err


def is_restarted(agent: RunningAgent, role: str, pid: int | None) -> bool:
    """Return whether the child with this role runs in another process than `pid`."""
    return agent.child(role) not in (None, pid)


def test_hanging_processes_are_killed_restarted_and_logged_once_each(tmp_path: Path) -> None:
    with running(tmp_path / "a", *DEV) as agent:
        agent.wait_ready()
        hanging = {role: agent.child(role) for role in ("api", "brain", "node")}
        store = agent.child("store")
        for pid in hanging.values():
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)

        for role, pid in hanging.items():
            wait_until(
                partial(is_restarted, agent, role, pid),
                what=f"{role} was started again",
                within_s=SilenceLimits().max_idle_s + 20.0,
            )
        assert isinstance(agent.get("/v1/nodes"), list)
        assert agent.child("store") == store
        for role in hanging:
            limits = {"api": API_SILENCE_LIMITS, "node": NODE_SILENCE_LIMITS}.get(role, SilenceLimits())
            cause = f"killed: stopped, and no sign of life for {limits.max_idle_s:g} s"
            assert agent.err.count(f"process={role} delay_s=0.1 cause={cause}") == 1


def test_a_hung_node_process_is_back_before_its_node_counts_as_down(tmp_path: Path) -> None:
    with running(tmp_path / "a", *DEV) as agent:
        agent.wait_ready()
        agent.put("/v1/jobs", sleeping_job("before"))
        wait_until(lambda: list_running_jobs(agent) == ["before"], what="the job runs")
        before, pid = describe_task(agent, "before"), agent.child("node")
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)

        wait_until(
            partial(is_restarted, agent, "node", pid),
            what="the node process was started again",
            within_s=15.0,  # Nodes are declared down between 10 and 20 s after they hang.
        )
        # Once the node has reported a newer job, it has also reported what became of the older one.
        agent.put("/v1/jobs", sleeping_job("after"))
        wait_until(lambda: "after" in list_running_jobs(agent), what="the node starts jobs again")

        assert list_running_jobs(agent) == ["after", "before"]
        assert describe_task(agent, "before") == before
        assert "nodes missed heartbeats" not in agent.err


def sleeping_job(name: str) -> dict[str, Any]:
    """Return a job whose task is a process of its own, so that it runs on without the node process."""
    task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["600"]}}
    return {"Job": {"ID": name, "TaskGroups": [{"Name": "g", "Tasks": [task]}]}}


def list_running_jobs(agent: RunningAgent) -> list[str]:
    """Return the job of each running allocation, sorted."""
    allocations: Any = agent.get("/v1/allocations")
    return sorted(each["JobID"] for each in allocations if each["ClientStatus"] == "running")


def describe_task(agent: RunningAgent, job: str) -> tuple[str, str, list[str]]:
    """Return the allocation of the job's only task, when the task started, and its events."""
    allocations: Any = agent.get(f"/v1/job/{job}/allocations")
    (allocation,) = allocations
    task = allocation["TaskStates"]["t"]
    return allocation["ID"], task["StartedAt"], [event["Type"] for event in task["Events"]]


def test_requests_wait_while_the_api_process_restarts(dev: RunningAgent) -> None:
    pid = dev.child("api")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), what="the api process has ended")

    # Connecting succeeds before the new process accepts, because the parent holds the socket.
    assert isinstance(dev.get("/v1/nodes"), list)


def test_a_hanging_process_is_killed_when_the_agent_stops(tmp_path: Path) -> None:
    with running(tmp_path / "a", *DEV) as agent:
        agent.wait_ready()
        pid = agent.child("brain")
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        agent.signal(signal.SIGINT)

        assert agent.wait_end() == 0
        assert "killing process: it did not stop in time process=brain" in agent.err
        assert not is_alive(pid)


def run_once(folder: Path, *arguments: str) -> bool:
    """Start an agent and stop it as soon as it is ready. Return whether it has begun a cluster."""
    with running(folder, *DEV, *arguments) as agent:
        agent.wait_ready()
        has_begun = "bootstrapped cluster" in agent.err
        agent.signal(signal.SIGINT)
        agent.wait_end()
        return has_begun


@pytest.fixture(scope="module")
def stopped_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an agent that has begun a cluster and was stopped. Tests leave no agent running in it."""
    folder = tmp_path_factory.mktemp("stopped") / "a"
    assert run_once(folder)
    return folder


def test_data_survives_a_restart_and_is_deleted_with_reset_data(stopped_folder: Path) -> None:
    assert [run_once(stopped_folder), run_once(stopped_folder, "--reset-data")] == [False, True]


def test_reset_data_deletes_nothing_in_a_folder_of_another_program(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letter.txt").write_text("dear")

    process = run(tmp_path, *DEV, "--reset-data", "--data-dir", "letters")

    assert process.returncode == 1
    assert "holds other things than data of wharf" in process.stderr
    assert (tmp_path / "letters" / "letter.txt").read_text() == "dear"


def test_a_port_in_use_is_reported_in_one_line_with_the_remedy(tmp_path: Path) -> None:
    with socket.socket() as port_holder:
        port_holder.bind(("127.0.0.1", 0))
        port_holder.listen()
        port = port_holder.getsockname()[1]
        process = run(tmp_path, "dev", "--port", str(port))

    assert process.returncode == 1
    assert lines(process.stderr) == [
        f"wharf: port {port} on 127.0.0.1 is in use: stop what listens there, or choose another with --port"
    ]


def test_a_folder_in_use_is_reported_in_one_line_with_its_process(dev: RunningAgent) -> None:
    process = run(dev.folder, *DEV)

    assert process.returncode == 1
    (line,) = lines(process.stderr)
    assert f"is in use by another wharf (process {dev.process.pid}, {dev.address})" in line


def test_a_folder_of_another_user_is_reported_in_one_line_with_its_owner(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        folder, expected = Path("/"), "/.wharf"
        process = run(tmp_path, *DEV, "--data-dir", str(folder / ".wharf"))
    else:
        folder = tmp_path / "theirs"
        folder.mkdir()
        os.chown(folder, 65_534, 65_534)
        expected = "belongs to the user nobody: run as nobody, or choose another folder with --data-dir"
        process = run(tmp_path, *DEV, "--data-dir", str(folder))

    assert process.returncode == 1
    (line,) = lines(process.stderr)
    assert expected in line


def test_errors_of_a_configuration_are_listed_and_nothing_starts(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('data_dir = "/nowhere"\n[sever]\nenabled = true\n[ports]\nhttp = "x"\n')

    process = run(tmp_path, "agent", "--config", "a.toml")

    assert process.returncode == 1
    assert lines(process.stderr) == [
        "wharf: a.toml:2: sever: there is no such setting; did you mean server?",
        'wharf: a.toml:5: ports.http: expected an integer, given the text "x"',
    ]


def test_a_damaged_log_ends_the_agent_with_an_error(tmp_path: Path) -> None:
    state = tmp_path / "a" / ".wharf" / "state"
    state.mkdir(parents=True)
    (state / "log.db").write_bytes(b"this is no database" * 1_000)

    with running(tmp_path / "a", *DEV) as agent:
        assert agent.wait_end() == 1
        assert "log.db" in lines(agent.err)[-1]
        assert "Traceback" not in agent.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("job", b"\xff\xff"), "is damaged"),
        (
            put(
                CLUSTER_FORMAT.name, encode_record(CLUSTER_FORMAT, RecordFormat(version=99)), table=CLUSTER_FORMAT.name
            ),
            "the cluster's data has format 99",
        ),
    ],
    ids=["a damaged record", "a newer format"],
)
def test_an_unreadable_record_ends_the_agent_with_an_error(tmp_path: Path, change: EncodedChange, message: str) -> None:
    state = tmp_path / "a" / ".wharf" / "state"
    state.mkdir(parents=True)
    asyncio.run(write_change(state, change))

    with running(tmp_path / "a", *DEV) as agent:
        assert agent.wait_end() == 1
        assert message in lines(agent.err)[-1]
        assert "Traceback" not in agent.err


def test_a_missing_tls_file_for_etcd_ends_the_agent_with_an_error(tmp_path: Path) -> None:
    etcd = (
        '[state]\nengine = "etcd"\n[state.etcd]\nendpoints = ["127.0.0.1:1"]\n[state.etcd.tls]\nca_file = "/nowhere/ca"'
    )
    file = write_agent_config(tmp_path / "a", etcd)

    with running(tmp_path / "a", "agent", "--config", str(file)) as agent:
        assert agent.wait_end() == 1
        assert (
            lines(agent.err)[-1] == "wharf: the TLS file /nowhere/ca for etcd cannot be read: No such file or directory"
        )


async def write_change(folder: Path, change: EncodedChange) -> None:
    engine = SqliteEngine(RealWorld(), folder)
    await engine.open()
    await commit(engine, change)
    await engine.close()


def write_agent_config(folder: Path, text: str = "") -> Path:
    file = folder / "wharf.toml"
    folder.mkdir(exist_ok=True)
    file.write_text(
        f'data_dir = "{folder}/data"\n{text}\n[ports]\nhttp = 0\n[server]\nenabled = true\n[client]\nenabled = true\n'
    )
    return file


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    """An agent with a configuration file. One test reloads it with changed settings, and one with an error."""
    folder = tmp_path_factory.mktemp("configured") / "a"
    with running(folder, "agent", "--config", str(write_agent_config(folder))) as agent:
        agent.wait_ready()
        yield agent


def test_a_reload_applies_live_settings_and_names_settings_that_need_a_restart(configured: RunningAgent) -> None:
    write_agent_config(configured.folder, 'log_level = "debug"\ndatacenter = "dc2"')
    configured.signal(signal.SIGHUP)

    wait_until(lambda: "configuration reloaded" in configured.err, what="the reload is logged")
    (line,) = [line for line in lines(configured.err) if "configuration reloaded" in line]
    assert 'applied=["log_level"]' in line
    assert 'needs_restart=["datacenter"]' in line


def test_a_reload_with_an_error_changes_nothing_and_is_logged(configured: RunningAgent) -> None:
    reload_count = configured.err.count("configuration reloaded")
    write_agent_config(configured.folder, "log_levle = 3")
    configured.signal(signal.SIGHUP)

    wait_until(lambda: "the configuration was not reloaded" in configured.err, what="the rejected reload is logged")
    assert "did you mean log_level?" in configured.err
    assert configured.err.count("configuration reloaded") == reload_count
    assert len([pid for pid in configured.children() if role_of(pid)]) == 4


def test_a_state_in_memory_is_lost_with_the_agent(tmp_path: Path) -> None:
    file = write_agent_config(tmp_path / "a", '[state]\nengine = "memory"')
    for _ in range(2):
        with running(tmp_path / "a", "agent", "--config", str(file)) as agent:
            agent.wait_ready()
            agent.signal(signal.SIGTERM)
            assert agent.wait_end() == 0
            assert "bootstrapped cluster" in agent.err
            assert not (tmp_path / "a" / "data" / "volatile").exists()


def test_several_api_processes_share_one_port(tmp_path: Path) -> None:
    file = write_agent_config(tmp_path / "a", "[api]\nprocesses = 2")
    with running(tmp_path / "a", "agent", "--config", str(file)) as agent:
        agent.wait_ready()

        assert agent.child("api-1")
        assert agent.child("api-2")
        assert isinstance(agent.get("/v1/nodes"), list)


SECRET_OF_NODE = "s.secret-of-the-node"


@pytest.fixture(scope="module")
def with_secrets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    """An agent with secrets in its environment."""
    environment = {
        "WHARF_CONFIG__CLIENT__INTRO_TOKEN": SECRET_OF_NODE,
        "WHARF_CONFIG__STATE__ETCD__PASSWORD": "pw-of-etcd",
    }
    with running(tmp_path_factory.mktemp("secrets") / "a", *DEV, environment=environment) as agent:
        agent.wait_ready()
        yield agent


def test_settings_of_the_environment_are_not_passed_to_child_processes(with_secrets: RunningAgent) -> None:
    children = with_secrets.children()

    assert len(children) >= 5
    for pid in children:
        assert SECRET_OF_NODE.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        assert SECRET_OF_NODE.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_debug_archive_holds_sizes_logs_and_stacks_of_every_process_and_no_secret(with_secrets: RunningAgent) -> None:
    with (with_secrets.folder / ".wharf" / "logs" / "wharf.log").open("a") as log:
        log.write(f"X-Cluster-Token: 8f3-{SECRET_OF_NODE}\n")

    process = run(with_secrets.folder, "operator", "debug", "--output", "d.tar.gz")

    assert process.returncode == 0, process.stderr
    archive = with_secrets.folder / "d.tar.gz"
    assert archive.stat().st_mode & 0o777 == 0o600
    with tarfile.open(archive) as opened:
        files = {member.name.removeprefix("d/"): opened.extractfile(member) for member in opened.getmembers()}
        texts = {name: file.read().decode() for name, file in files.items() if file is not None}
    for role in ("store", "brain", "api", "node"):
        assert "MainThread" in texts[f"stacks/{role}.txt"]
    assert "log.db" in texts["state.json"]
    assert "log index" in texts["processes.json"]
    assert "bootstrapped cluster" in texts["logs/brain.jsonl"]
    assert "bootstrapped cluster" in texts["logs/wharf.log"]
    assert "<redacted>" in texts["configuration.json"]
    all_text = "".join(texts.values())
    assert SECRET_OF_NODE not in all_text
    assert "pw-of-etcd" not in all_text


def test_a_debug_archive_contains_the_other_processes_if_one_is_stuck(dev: RunningAgent) -> None:
    pid = dev.child("brain")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    process = run(dev.folder, "operator", "debug", "--output", "d.tar.gz")
    os.kill(pid, signal.SIGCONT)

    assert process.returncode == 0
    assert "No reply in time from: brain." in process.stdout


def test_without_an_agent_a_debug_archive_reports_that_none_runs(stopped_folder: Path) -> None:
    process = run(stopped_folder, "operator", "debug", "--output", "d.tar.gz")

    assert process.returncode == 0
    assert "No agent is running" in process.stdout
