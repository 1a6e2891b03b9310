"""Several agents on one etcd: one leads, all answer, and when the leader falls silent another takes over."""

import os
import shutil
import signal
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import RunningAgent, running
from tests.agent.test_processes import A_JOB
from tests.cluster.engines.etcd_server import running_etcd
from tests.waiting import wait_until
from wharf.agent.identity import SERVER_ID_FILE

pytestmark = pytest.mark.needs_program("etcd")


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster.members[0].endpoint


def configure(folder: Path, name: str, endpoint: str) -> Path:
    folder.mkdir()
    file = folder / "wharf.toml"
    file.write_text(
        f'name = "{name}"\ndata_dir = "{folder}/data"\n[ports]\nhttp = 0\n[server]\nenabled = true\n'
        f'[client]\nenabled = true\n[state]\nengine = "etcd"\n[state.etcd]\nendpoints = ["{endpoint}"]\n'
        f'prefix = "/{folder.parent.name}"\n[keyring]\nfile = "{folder.parent}/keyring.key"\n'
    )
    return file


def test_a_second_server_takes_over_when_the_first_falls_silent(tmp_path: Path, endpoint: str) -> None:
    first_file = configure(tmp_path / "one", "one", endpoint)
    second_file = configure(tmp_path / "two", "two", endpoint)
    with running(tmp_path / "one", "agent", "--config", str(first_file)) as first:
        first.wait_ready()
        wait_until(lambda: "elected leader" in first.err, what="the first leads")
        with running(tmp_path / "two", "agent", "--config", str(second_file)) as second:
            second.wait_ready()
            wait_until(lambda: nodes_of(second) == 2, what="both nodes are there")
            # Asked of the second, decided by the first.
            second.put("/v1/jobs", A_JOB)
            wait_until(lambda: second.get("/v1/job/hello/allocations"), what="it is placed")
            assert "elected leader" not in second.err

            # Silent, and unable to give anything up: its lease has to run out.
            for pid in [first.process.pid, *first.children()]:
                os.kill(pid, signal.SIGSTOP)

            wait_until(lambda: "elected leader" in second.err, what="the second leads", within_s=60.0)
            second.put("/v1/jobs", {"Job": A_JOB["Job"] | {"ID": "again"}})
            wait_until(lambda: second.get("/v1/job/again/allocations"), what="it is placed too", within_s=60.0)


def test_a_leader_that_is_stopped_in_order_leaves_no_gap(tmp_path: Path, endpoint: str) -> None:
    first_file = configure(tmp_path / "one", "one", endpoint)
    second_file = configure(tmp_path / "two", "two", endpoint)
    with running(tmp_path / "one", "agent", "--config", str(first_file)) as first:
        first.wait_ready()
        wait_until(lambda: "elected leader" in first.err, what="the first leads")
        with running(tmp_path / "two", "agent", "--config", str(second_file)) as second:
            second.wait_ready()
            first.signal(signal.SIGTERM)

            # Well before the lease of the first would have run out.
            wait_until(lambda: "elected leader" in second.err, what="the second leads", within_s=6.0)


def test_the_leadership_moves_to_the_server_that_is_named_and_back(tmp_path: Path, endpoint: str) -> None:
    first_file = configure(tmp_path / "one", "one", endpoint)
    second_file = configure(tmp_path / "two", "two", endpoint)
    with running(tmp_path / "one", "agent", "--config", str(first_file)) as first:
        first.wait_ready()
        wait_until(lambda: "elected leader" in first.err, what="the first leads")
        with running(tmp_path / "two", "agent", "--config", str(second_file)) as second:
            second.wait_ready()
            leader = first.get("/v1/status/leader")
            peers = second.get("/v1/status/peers")
            assert isinstance(peers, list)
            (other,) = [peer for peer in peers if peer != leader]

            # Asked of the one that does not lead: it asks the leader, and answers when it leads itself.
            assert second.do(f"/v1/operator/raft/transfer-leadership?address={other}") == 200
            # Who leads is told without a barrier: another server hears of it in a moment.
            wait_until(lambda: first.get("/v1/status/leader") == other, what="the first knows")
            first.put("/v1/jobs", A_JOB)
            wait_until(lambda: first.get("/v1/job/hello/allocations"), what="it is placed")

            assert first.do(f"/v1/operator/raft/transfer-leadership?address={leader}") == 200
            wait_until(lambda: second.get("/v1/status/leader") == leader, what="the second knows")

            def stands() -> bool:
                """A server that is slow for a moment counts as unhealthy for that moment."""
                try:
                    health: Any = second.get("/v1/operator/autopilot/health")
                except urllib.error.HTTPError:
                    return False
                return (health["Healthy"], health["FailureTolerance"], len(health["Servers"])) == (True, 1, 2)

            wait_until(stands, what="both are healthy")


@pytest.mark.parametrize("advertised", ["", "10.0.0.1:4646"], ids=["addresses of their own", "the same address"])
def test_a_copied_data_folder_is_rejected_and_the_first_server_continues(
    tmp_path: Path, endpoint: str, advertised: str
) -> None:
    first_file = configure(tmp_path / "one", "one", endpoint)
    copy_file = configure(tmp_path / "two", "two", endpoint)
    if advertised:
        for file in (first_file, copy_file):
            file.write_text(f'{file.read_text()}[advertise]\nhttp = "{advertised}"\n')
    with running(tmp_path / "one", "agent", "--config", str(first_file)) as first:
        first.wait_ready()
        wait_until(lambda: "elected leader" in first.err, what="the first leads")
        (tmp_path / "two" / "data").mkdir(mode=0o700)
        shutil.copy(tmp_path / "one" / "data" / SERVER_ID_FILE, tmp_path / "two" / "data" / SERVER_ID_FILE)
        with running(tmp_path / "two", "agent", "--config", str(copy_file)) as copy:
            assert copy.wait_end(within_s=60.0) == 1
            assert f"is in use by one at {advertised or '127.0.0.1:'}" in copy.err
            assert "remove `server-id` from this data folder" in copy.err

        assert [member["Name"] for member in members_of(first)] == ["one.global"]
        first.put("/v1/jobs", A_JOB)
        wait_until(lambda: first.get("/v1/job/hello/allocations"), what="it is placed")


def test_an_agent_waits_for_an_etcd_that_cannot_be_reached_and_logs_it_once(tmp_path: Path) -> None:
    file = configure(tmp_path / "one", "one", "127.0.0.1:1")
    with running(tmp_path / "one", "agent", "--config", str(file)) as agent:
        line = "log cannot be reached; retrying error=etcd at 127.0.0.1:1"
        wait_until(lambda: agent.err.count(line) >= 2, what="logged by api and brain")
        agent.signal(signal.SIGTERM)

        assert agent.wait_end() == 0
        assert agent.err.count("log cannot be reached") == 2  # Once each.


def members_of(agent: RunningAgent) -> list[dict[str, object]]:
    told = agent.get("/v1/agent/members")
    assert isinstance(told, dict)
    members: list[dict[str, object]] = told["Members"]
    return members


def nodes_of(agent: RunningAgent) -> int:
    nodes = agent.get("/v1/nodes")
    assert isinstance(nodes, list)
    return len(nodes)


def test_a_leader_on_etcd_stays_leader_during_many_dry_runs(tmp_path: Path, endpoint: str) -> None:
    file = configure(tmp_path / "one", "one", endpoint)
    with running(tmp_path / "one", "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        wait_until(lambda: nodes_of(agent) == 1, what="its node is there")
        agent.put("/v1/jobs", A_JOB)
        before = agent.children()

        # Each is thought through in a copy of the brain, which holds the connections to etcd too.
        for number in range(30):
            job = {"Job": A_JOB["Job"] | {"ID": f"job-{number}"}}
            planned: Any = agent.put(f"/v1/job/job-{number}/plan", job)
            assert planned["Annotations"]["DesiredTGUpdates"]["g"]["Place"] == 1
            agent.put("/v1/jobs", job)
            explained: Any = agent.get("/v1/job/hello/explain")
            assert explained["JobID"] == "hello"

        wait_until(lambda: agent.get("/v1/job/job-29/allocations"), what="the last is placed")
        assert agent.err.count("elected leader") == 1
        assert "fork" not in agent.err
        assert agent.children() == before
