"""A server whose etcd has lost one of three members: operators see which one before writes stop."""

import json
import urllib.request
from pathlib import Path

import pytest

from tests.agent.dropped_etcd import running_server
from tests.agent.processes import RunningAgent, run
from tests.cluster.engines.etcd_server import running_etcd
from tests.waiting import once_a_second, wait_until

pytestmark = pytest.mark.needs_program("etcd")

REST = "With one more loss, etcd accepts no writes: start it again, or replace it"


def read_health(server: RunningAgent) -> str:
    with urllib.request.urlopen(f"{server.address}/v1/agent/health", timeout=30) as reply:
        return str(json.load(reply)["server"]["message"])


def test_health_log_members_and_page_name_the_lost_member(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "etcd", members=3) as etcd, running_server(tmp_path, "one", *etcd.members) as server:
        before = read_health(server)
        lost = etcd.members[1]
        lost.kill()
        wait_until(once_a_second(lambda: REST in read_health(server)), what="the health warns", within_s=60.0)
        health = read_health(server)
        members = run(tmp_path, "server", "members", "--address", server.address)
        wait_until(lambda: "store has a problem" in server.err, what="the log warns", within_s=60.0)
        with urllib.request.urlopen(f"{server.address}/ui/servers", timeout=30) as reply:
            page = reply.read().decode()

    beginning = f"the etcd member {lost.endpoint} has not replied since 20"
    assert before == "ok"
    assert health.startswith(beginning)
    assert beginning in " ".join(members.stderr.split())
    assert members.returncode == 0
    assert beginning in page
    assert beginning in server.err
