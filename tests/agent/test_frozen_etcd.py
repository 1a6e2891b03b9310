"""Writes while an etcd member is frozen: each is answered within three seconds, and is stored once or not at all."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.agent.dropped_etcd import running_server
from tests.agent.processes import RunningAgent
from tests.cluster.engines.etcd_server import EtcdCluster, EtcdMember, running_etcd
from tests.waiting import wait_until

pytestmark = pytest.mark.needs_program("etcd")

MAX_REPLY_S: Final = 3.0
FAST_ELECTION: Final = ("--heartbeat-interval=50", "--election-timeout=500")
"""By default, etcd may need two seconds to elect a leader, and four on a busy machine. The test is about our part."""
JOB: Final = {
    "ID": "parent", "Type": "batch", "ParameterizedJob": {"MetaRequired": ["number"]},
    "TaskGroups": [{"Name": "group", "Tasks": [{"Name": "task", "Driver": "mock"}]}],
}  # fmt: skip
WRITERS: Final = 4


class WriteReply(msgspec.Struct, frozen=True):
    """How a server answered a write."""

    number: int
    status: int
    took_s: float
    text: str


def dispatch(server: RunningAgent, number: int) -> WriteReply:
    """Dispatch a child of the job. Each dispatch that is stored creates one more child."""
    request = urllib.request.Request(
        f"{server.address}/v1/job/parent/dispatch",
        data=json.dumps({"Meta": {"number": str(number)}}).encode(),
        method="PUT",
    )
    began_s = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            status, text = reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    return WriteReply(number, status, time.monotonic() - began_s, text)


def count_children(server: RunningAgent) -> dict[int, int]:
    """Return how many children exist for each number."""
    counts: dict[int, int] = {}
    listed: Any = server.get("/v1/jobs?prefix=parent/&meta=true")
    for job in listed:
        number = int(job["Meta"]["number"])
        counts[number] = counts.get(number, 0) + 1
    return counts


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with running_etcd(tmp_path / "etcd", members=3, options=FAST_ELECTION) as cluster:
        yield cluster


def choose_members(etcd: EtcdCluster, used: str, frozen: str) -> tuple[EtcdMember, list[EtcdMember]]:
    """Return the member to freeze, and all members in the order in which the server tries them."""
    leader = etcd.leader()
    first, second = [member for member in etcd.members if member is not leader]
    order = [first, second, leader] if used == "follower" else [leader, first, second]
    return {"follower": first, "leader": leader}[frozen], order


@pytest.mark.parametrize(
    ("used", "frozen"),
    [("follower", "follower"), ("leader", "leader"), ("follower", "leader")],
    ids=["the follower in use", "the leader in use", "the leader behind a follower"],
)
def test_writes_beside_a_frozen_etcd_member_are_answered_within_three_seconds_and_stored_once(
    tmp_path: Path, etcd: EtcdCluster, used: str, frozen: str
) -> None:
    member, order = choose_members(etcd, used, frozen)
    with running_server(tmp_path, f"{used}-{frozen}", *order) as server:
        server.put("/v1/jobs", {"Job": JOB})
        dispatch(server, 0)
        replies: list[WriteReply] = []
        threads = [
            threading.Thread(target=lambda each=number: replies.append(dispatch(server, each)))
            for number in range(1, WRITERS + 1)
        ]
        member.pause()
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            following = dispatch(server, WRITERS + 1)
            while_frozen = count_children(server)
        finally:
            member.resume()
        wait_until(member.is_healthy, what="the member is back")
        last = dispatch(server, WRITERS + 2)
        slowest_s = max(reply.took_s for reply in (*replies, following))
        print(f"slowest write {slowest_s:.1f} s: {[*replies, following]}")

        stored = {reply.number: 1 for reply in (*replies, following) if reply.status == 200}
        assert slowest_s < MAX_REPLY_S
        assert following.status == 200
        assert while_frozen == {0: 1, **stored}
        assert count_children(server) == {**while_frozen, last.number: 1}
