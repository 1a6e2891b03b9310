"""Servers whose packets from and to an etcd member are dropped. `test_dropped_network` runs these tests in a namespace."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.agent.processes import RunningAgent, running
from tests.cluster.engines.etcd_server import EtcdCluster, EtcdMember, running_etcd
from tests.waiting import wait_until
from wharf.contract.client import ClientSettings, connect
from wharf.contract.model.namespaces import Namespace

MAX_NOTICE_S: Final = 10.0
"""A follower notices within this time that its feed is dead: 6 s until a keepalive is sent, 3 s for its reply."""
MAX_WRITE_S: Final = 3.0
MAX_RESUME_S: Final = 20.0
"""After the network works again, the follower has all changes within this time."""


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with running_etcd(tmp_path / "etcd", members=3) as cluster:
        yield cluster


@contextmanager
def running_server(folder: Path, name: str, *members: EtcdMember) -> Iterator[RunningAgent]:
    own = folder / name
    own.mkdir()
    endpoints = ", ".join(f'"{member.endpoint}"' for member in members)
    (own / "wharf.toml").write_text(
        f'name = "{name}"\ndata_dir = "{own}/data"\n[ports]\nhttp = 0\n[server]\nenabled = true\n'
        f'[client]\nenabled = false\n[state]\nengine = "etcd"\n[state.etcd]\nendpoints = [{endpoints}]\n'
        f'[keyring]\nfile = "{folder}/keyring.key"\n'
    )
    with running(own, "agent", "--config", "wharf.toml") as agent:
        agent.wait_ready()
        yield agent


def change_firewall(member: EtcdMember, action: str) -> None:
    """Add or remove the rules that drop all packets of clients from and to an etcd member."""
    for side in ("--sport", "--dport"):
        rule = ["INPUT", "--protocol", "tcp", side, member.endpoint.partition(":")[2], "--jump", "DROP"]
        subprocess.run(["iptables", "--wait", action, *rule], check=True)


def read_stale(server: RunningAgent) -> tuple[set[str], str, int]:
    """Return the names of all namespaces, whether a leader is known, and the age of the last contact in milliseconds."""
    with urllib.request.urlopen(f"{server.address}/v1/namespaces?stale", timeout=30) as reply:
        names = {each["Name"] for each in json.load(reply)}
        return names, reply.headers["X-Cluster-KnownLeader"], int(reply.headers["X-Cluster-LastContact"])


def store(server: RunningAgent, name: str) -> None:
    with connect(ClientSettings(addresses=(server.address,))) as client:
        client.namespaces.store(Namespace(name=name))


def test_the_feed_of_a_follower_moves_to_another_etcd_member(tmp_path: Path, etcd: EtcdCluster) -> None:
    first, second, third = etcd.members
    with (
        running_server(tmp_path, "leader", first) as leader,
        running_server(tmp_path, "follower", second, third) as follower,
    ):
        store(leader, "before")
        wait_until(lambda: "before" in read_stale(follower)[0], what="the follower follows")
        change_firewall(second, "--append")
        began_s = time.monotonic()
        store(leader, "after")

        wait_until(lambda: "after" in read_stale(follower)[0], what="the feed moved", within_s=30.0)
        moved_s = time.monotonic() - began_s
        print(f"the feed moved after {moved_s:.1f} s")

        assert moved_s < MAX_NOTICE_S


def test_a_follower_without_another_etcd_member_reports_that_it_lost_contact(tmp_path: Path, etcd: EtcdCluster) -> None:
    first, second, _ = etcd.members
    with running_server(tmp_path, "leader", first) as leader, running_server(tmp_path, "follower", second) as follower:
        store(leader, "before")
        wait_until(lambda: "before" in read_stale(follower)[0], what="the follower follows")
        change_firewall(second, "--append")
        began_s = time.monotonic()
        store(leader, "after")

        wait_until(lambda: read_stale(follower)[1] == "false", what="stale reads report it", within_s=30.0)
        noticed_s = time.monotonic() - began_s
        names, _, contact_ms = read_stale(follower)
        with pytest.raises(urllib.error.HTTPError, match="500"):
            follower.get("/v1/namespaces")
        refused_s = time.monotonic() - began_s
        change_firewall(second, "--delete")
        healed_s = time.monotonic()
        wait_until(lambda: read_stale(follower)[0] >= {"after"}, what="the feed resumed", within_s=60.0)
        resumed_s = time.monotonic() - healed_s
        print(f"noticed after {noticed_s:.1f} s, a read refused by {refused_s:.1f} s, resumed after {resumed_s:.1f} s")

        assert noticed_s < MAX_NOTICE_S
        assert names == {"default", "before"}
        assert contact_ms >= 5_000
        assert resumed_s < MAX_RESUME_S


def test_a_write_beside_an_etcd_member_whose_packets_are_dropped_is_answered_within_three_seconds(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    with running_server(tmp_path, "server", *etcd.members) as server:
        store(server, "before")
        change_firewall(etcd.members[0], "--append")
        began_s = time.monotonic()

        store(server, "after")
        took_s = time.monotonic() - began_s
        print(f"the write was answered after {took_s:.1f} s")

        assert took_s < MAX_WRITE_S
        assert read_stale(server)[0] == {"default", "before", "after"}
