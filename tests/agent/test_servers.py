"""Several agents on one etcd: one leads, all serve requests, and another takes over if the leader stops or no longer responds."""

import json
import os
import shutil
import signal
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import RunningAgent, role_of, running
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


def test_a_second_server_takes_over_when_the_first_stops_responding(tmp_path: Path, endpoint: str) -> None:
    first_file = configure(tmp_path / "one", "one", endpoint)
    second_file = configure(tmp_path / "two", "two", endpoint)
    with running(tmp_path / "one", "agent", "--config", str(first_file)) as first:
        first.wait_ready()
        wait_until(lambda: "elected leader" in first.err, what="the first leads")
        with running(tmp_path / "two", "agent", "--config", str(second_file)) as second:
            second.wait_ready()
            wait_until(lambda: nodes_of(second) == 2, what="both nodes are registered")
            # Sent to the second server, decided by the first.
            second.put("/v1/jobs", A_JOB)
            wait_until(lambda: second.get("/v1/job/hello/allocations"), what="the job is placed")
            assert "elected leader" not in second.err

            # A stopped process cannot resign, so its lease has to expire.
            for pid in [first.process.pid, *first.children()]:
                os.kill(pid, signal.SIGSTOP)

            wait_until(lambda: "elected leader" in second.err, what="the second leads", within_s=60.0)
            second.put("/v1/jobs", {"Job": A_JOB["Job"] | {"ID": "again"}})
            wait_until(lambda: second.get("/v1/job/again/allocations"), what="the second job is placed", within_s=60.0)


def test_a_leader_that_shuts_down_is_replaced_before_its_lease_expires(tmp_path: Path, endpoint: str) -> None:
    first_file = configure(tmp_path / "one", "one", endpoint)
    second_file = configure(tmp_path / "two", "two", endpoint)
    with running(tmp_path / "one", "agent", "--config", str(first_file)) as first:
        first.wait_ready()
        wait_until(lambda: "elected leader" in first.err, what="the first leads")
        with running(tmp_path / "two", "agent", "--config", str(second_file)) as second:
            second.wait_ready()
            first.signal(signal.SIGTERM)

            # Long before the lease of the first would have expired.
            wait_until(lambda: "elected leader" in second.err, what="the second leads", within_s=6.0)


def test_leadership_can_be_transferred_to_a_named_server_and_back(tmp_path: Path, endpoint: str) -> None:
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
            (follower,) = [peer for peer in peers if peer != leader]

            # Sent to the follower, which forwards it to the leader and replies when it leads itself.
            assert second.put_without_body(f"/v1/operator/raft/transfer-leadership?address={follower}") == 200
            # The leader's address is read without a barrier, so the other server may return the old one for a moment.
            wait_until(
                lambda: first.get("/v1/status/leader") == follower, what="the first server reports the new leader"
            )
            first.put("/v1/jobs", A_JOB)
            wait_until(lambda: first.get("/v1/job/hello/allocations"), what="the job is placed")

            assert first.put_without_body(f"/v1/operator/raft/transfer-leadership?address={leader}") == 200
            wait_until(
                lambda: second.get("/v1/status/leader") == leader, what="the second server reports the new leader"
            )

            def is_settled() -> bool:
                """Check that both servers are healthy; a slow server is unhealthy for a moment."""
                try:
                    health: Any = second.get("/v1/operator/autopilot/health")
                except urllib.error.HTTPError:
                    return False
                return (health["Healthy"], health["FailureTolerance"], len(health["Servers"])) == (True, 1, 2)

            wait_until(is_settled, what="both servers are healthy")


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
        wait_until(lambda: first.get("/v1/job/hello/allocations"), what="the job is placed")


def test_an_agent_waits_for_an_etcd_that_cannot_be_reached_and_logs_it_once(tmp_path: Path) -> None:
    file = configure(tmp_path / "one", "one", "127.0.0.1:1")
    with running(tmp_path / "one", "agent", "--config", str(file)) as agent:
        line = "log cannot be reached; retrying error=etcd at 127.0.0.1:1"
        wait_until(lambda: agent.err.count(line) >= 2, what="api and brain have logged the error")
        agent.signal(signal.SIGTERM)

        assert agent.wait_end() == 0
        assert agent.err.count("log cannot be reached") == 2  # Once each.


def test_a_killed_leader_stays_listed_as_failed_until_it_returns_and_health_counts_it(
    tmp_path: Path, endpoint: str
) -> None:
    first_file = configure(tmp_path / "one", "one", endpoint)
    second_file = configure(tmp_path / "two", "two", endpoint)
    with (
        running(tmp_path / "two", "agent", "--config", str(second_file)) as second,
        running(tmp_path / "one", "agent", "--config", str(first_file)) as first,
    ):
        first.wait_ready()
        second.wait_ready()
        wait_until(lambda: len(members_of(second)) == 2, what="both servers are members")
        leader, other = (first, second) if "elected leader" in first.err else (second, first)
        name = "one" if leader is first else "two"
        wait_until(lambda: health_of(other)["Healthy"], what="both servers are healthy")

        leader.signal(signal.SIGKILL)

        wait_until(lambda: last_contact_of(other, name), what="the leader is listed with its last contact")
        assert statuses_of(other) == {"one": "alive", "two": "alive", name: "failed"}
        health = health_of(other)
        failed = next(server for server in health["Servers"] if server["SerfStatus"] == "failed")
        assert (health["Healthy"], health["FailureTolerance"], len(health["Servers"])) == (False, 0, 2)
        assert failed["WhyUnhealthy"] == "ended without leaving the cluster"
        assert failed["LastContact"].startswith("20")
        leader.wait_end()
        folder, file = (tmp_path / "one", first_file) if leader is first else (tmp_path / "two", second_file)
        with running(folder, "agent", "--config", str(file)) as returned:
            returned.wait_ready()
            wait_until(lambda: statuses_of(other).get(name) == "alive", what="the server is listed as alive again")

            returned.signal(signal.SIGTERM)

            wait_until(lambda: name not in statuses_of(other), what="a server that left is not listed")


def statuses_of(agent: RunningAgent) -> dict[str, object]:
    return {str(member["Name"]).removesuffix(".global"): member["Status"] for member in members_of(agent)}


def last_contact_of(agent: RunningAgent, name: str) -> str:
    """Return the last contact of a failed server, as the list of servers shows it; empty if it is not failed."""
    (tags,) = [member["Tags"] for member in members_of(agent) if member["Name"] == f"{name}.global"]
    assert isinstance(tags, dict)
    return str(tags.get("last_contact", ""))


def health_of(agent: RunningAgent) -> Any:
    """Return the health of the servers, also if its status is 429."""
    try:
        return agent.get("/v1/operator/autopilot/health")
    except urllib.error.HTTPError as error:
        return json.load(error)


def members_of(agent: RunningAgent) -> list[dict[str, object]]:
    reply = agent.get("/v1/agent/members")
    assert isinstance(reply, dict)
    members: list[dict[str, object]] = reply["Members"]
    return members


def nodes_of(agent: RunningAgent) -> int:
    nodes = agent.get("/v1/nodes")
    assert isinstance(nodes, list)
    return len(nodes)


def test_a_leader_on_etcd_stays_leader_during_many_dry_runs(tmp_path: Path, endpoint: str) -> None:
    file = configure(tmp_path / "one", "one", endpoint)
    with running(tmp_path / "one", "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        wait_until(lambda: nodes_of(agent) == 1, what="the node is registered")
        agent.put("/v1/jobs", A_JOB)
        before = [pid for pid in agent.children() if role_of(pid)]

        # Each dry run forks the brain, and the fork inherits the connections to etcd.
        for number in range(30):
            job = {"Job": A_JOB["Job"] | {"ID": f"job-{number}"}}
            planned: Any = agent.put(f"/v1/job/job-{number}/plan", job)
            assert planned["Annotations"]["DesiredTGUpdates"]["g"]["Place"] == 1
            agent.put("/v1/jobs", job)
            explained: Any = agent.get("/v1/job/hello/explain")
            assert explained["JobID"] == "hello"

        wait_until(lambda: agent.get("/v1/job/job-29/allocations"), what="the last job is placed")
        assert agent.err.count("elected leader") == 1
        assert "fork" not in agent.err
        assert [pid for pid in agent.children() if role_of(pid)] == before


def test_a_second_server_with_the_name_of_a_living_one_is_refused_and_may_start_after_its_end(
    tmp_path: Path, endpoint: str
) -> None:
    first_file = configure(tmp_path / "one", "one", endpoint)
    second_file = configure(tmp_path / "two", "one", endpoint)
    with running(tmp_path / "one", "agent", "--config", str(first_file)) as first:
        first.wait_ready()
        with running(tmp_path / "two", "agent", "--config", str(second_file)) as second:
            assert second.wait_end(within_s=60.0) == 1
            address = first.address.removeprefix("http://")
            assert (
                f'the server name "one" is in use by the running server at {address}: set another `name`' in second.err
            )
        assert [member["Name"] for member in members_of(first)] == ["one.global"]
        first.put("/v1/jobs", A_JOB)

        for pid in [first.process.pid, *first.children()]:  # A killed server does not leave.
            os.kill(pid, signal.SIGKILL)

        with running(tmp_path / "two", "agent", "--config", str(second_file)) as successor:
            successor.wait_ready()
            assert [member["Status"] for member in members_of(successor)] == ["alive"]


@pytest.mark.faults
def test_of_two_servers_that_start_with_one_name_at_once_only_one_joins(tmp_path: Path, endpoint: str) -> None:
    third_file = configure(tmp_path / "three", "three", endpoint)
    first_file = configure(tmp_path / "one", "same", endpoint)
    second_file = configure(tmp_path / "two", "same", endpoint)
    with running(tmp_path / "three", "agent", "--config", str(third_file)) as third:
        third.wait_ready()
        with (
            running(tmp_path / "one", "agent", "--config", str(first_file)) as first,
            running(tmp_path / "two", "agent", "--config", str(second_file)) as second,
        ):
            wait_until(
                lambda: (
                    None not in (first.process.poll(), second.process.poll())
                    or first.process.poll() == 1
                    or second.process.poll() == 1
                ),
                what="one of both has ended",
                within_s=120.0,
            )
            wait_until(
                lambda: {member["Name"] for member in members_of(third)} == {"same.global", "three.global"},
                what="the other one is a member",
                within_s=120.0,
            )
            assert [first.process.poll(), second.process.poll()].count(1) == 1
