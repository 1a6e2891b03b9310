"""A node without servers or with slow ones: tasks keep running, and their ends are reported later."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.agent.processes import RunningAgent, running
from tests.node.nodes import ANode, a_raw_job, ended
from tests.node.way import Way, a_way_to
from tests.waiting import wait_until
from wharf.node.core.clock import SECOND_NS
from wharf.world import RealWorld

SERVER = """\
data_dir = "{folder}/data"
[server]
enabled = true
min_heartbeat_ttl = "{ttl}"
heartbeat_grace = "{ttl}"
[ports]
http = 0
"""


class Seen(NamedTuple):
    """A server as people see it, and the node that reaches it by a way of its own."""

    server: RunningAgent
    node: ANode
    way: Way


@contextmanager
def a_far_server(folder: Path, *, ttl: str = "1s") -> Iterator[Seen]:
    for name in ("server", "node"):
        (folder / name).mkdir()
    (folder / "server" / "wharf.toml").write_text(SERVER.format(folder=folder / "server", ttl=ttl))
    with running(folder / "server", "agent", "--config", "wharf.toml") as server:
        server.wait_ready()
        with a_way_to(server.address) as way:
            node = ANode(server, folder / "node", address=way.address)
            try:
                node.begin()
                node.wait_ready()
                yield Seen(server, node, way)
            finally:
                way.mend()
                node.end()


def status_of_node(seen: Seen) -> str:
    nodes: Any = seen.server.get("/v1/nodes")
    return str(nodes[0]["Status"])


def the(seen: Seen, job: str) -> dict[str, Any]:
    (found,) = seen.node.allocations(job)
    return dict(found)


def is_in(seen: Seen, **statuses: str) -> Callable[[], bool]:
    def told(job: str) -> list[str]:
        return [each["ClientStatus"] for each in seen.node.allocations(job)]

    return lambda: all(told(job) == [status] for job, status in statuses.items())


def run(seen: Seen, id: str, script: str, **disconnect: Any) -> None:
    kind = "batch" if id == "ends" else "service"
    job = a_raw_job(id, script, kind=kind)
    job["TaskGroups"][0]["Disconnect"] = disconnect or {"LostAfter": 3_600 * SECOND_NS, "Replace": False}
    seen.node.run(job)


def begin_work(seen: Seen, folder: Path) -> None:
    """One that goes on, and one that ends when it is told to."""
    run(seen, "goes", "exec sleep 1000")
    run(seen, "ends", f"until [ -e {folder}/end ]; do sleep 0.1; done; exit 0")
    wait_until(is_in(seen, goes="running", ends="running"), what="both run")


def check_after(seen: Seen, before: dict[str, Any], mended_ns: int) -> None:
    """What went on is the same, started once; what ended is told with the moment in which it did."""
    goes, ends = the(seen, "goes"), the(seen, "ends")
    assert before["TaskStates"]["t"]["StartedAt"] == goes["TaskStates"]["t"]["StartedAt"]
    assert 0 == goes["TaskStates"]["t"]["Restarts"]
    assert "0" == ended(ends)["exit_code"]
    events = ends["TaskStates"]["t"]["Events"]
    assert ["Received", "Started", "Terminated"] == [each["Type"] for each in events][:3]
    assert sorted(each["Time"] for each in events) == [each["Time"] for each in events]
    (end,) = [each["Time"] for each in events if each["Type"] == "Terminated"]
    assert end < mended_ns


@pytest.mark.parametrize("ways", [("there", "back"), ("there",), ("back",)], ids=["both ways", "there", "back"])
def test_tasks_keep_running_without_network_and_their_ends_are_reported_in_order_afterwards(
    tmp_path: Path, ways: tuple[str, ...]
) -> None:
    with a_far_server(tmp_path) as seen:
        begin_work(seen, tmp_path)
        before = the(seen, "goes")

        seen.way.cut(*ways)
        if "there" in ways:  # Else its heart is still heard.
            wait_until(lambda: status_of_node(seen) == "disconnected", what="it is missed")
            wait_until(is_in(seen, goes="unknown", ends="unknown"), what="nobody knows what became of them")
        (tmp_path / "end").touch()
        wait_until(lambda: "ends" in finished(seen), what="it ends by itself")
        mended_ns = RealWorld().now_ns()
        seen.way.mend()

        wait_until(is_in(seen, goes="running", ends="complete"), what="both are told", within_s=60)
        wait_until(lambda: status_of_node(seen) == "ready", what="the node is back", within_s=60)
        check_after(seen, before, mended_ns)


def finished(seen: Seen) -> list[str]:
    """Jobs whose end the node has written down: its supervisor need not remember it."""
    id = the(seen, "ends")["ID"]
    return [] if list((seen.node.folder / "node" / "runs").glob(f"{id}.*")) else ["ends"]


def test_slow_replies_delay_nothing_else(tmp_path: Path) -> None:
    with a_far_server(tmp_path, ttl="3s") as seen:
        seen.way.delay_s = 0.5
        begin_work(seen, tmp_path)
        (tmp_path / "end").touch()

        wait_until(is_in(seen, goes="running", ends="complete"), what="both are told", within_s=60)
        assert "ready" == status_of_node(seen)
        nodes: Any = seen.server.get("/v1/nodes")
        node: Any = seen.server.get(f"/v1/node/{nodes[0]['ID']}")
        assert "Node heartbeat missed" not in [event["Message"] for event in node["Events"]]


@pytest.mark.faults
@pytest.mark.parametrize("ways", [("there", "back"), ("back",)], ids=["both ways", "back"])
def test_each_group_follows_its_disconnect_rule_when_servers_are_away_for_minutes(
    tmp_path: Path, ways: tuple[str, ...]
) -> None:
    with a_far_server(tmp_path, ttl="10s") as seen:
        begin_work(seen, tmp_path)
        run(seen, "stops", f"trap 'touch {tmp_path}/stopped; exit 0' INT; while :; do sleep 0.1; done",
            StopOnClientAfter=30 * SECOND_NS)  # fmt: skip
        wait_until(is_in(seen, stops="running"), what="it runs")
        before, stops = the(seen, "goes"), the(seen, "stops")
        began_ns = RealWorld().now_ns()

        seen.way.cut(*ways)
        wait_until((tmp_path / "stopped").exists, what="it stops by its own rule", within_s=120)
        assert RealWorld().now_ns() - began_ns > 25 * SECOND_NS
        wait_until(lambda: RealWorld().now_ns() - began_ns > 150 * SECOND_NS, what="minutes pass", within_s=200)
        (tmp_path / "end").touch()
        wait_until(lambda: "ends" in finished(seen), what="it ends by itself")
        mended_ns = RealWorld().now_ns()
        seen.way.mend()

        wait_until(is_in(seen, goes="running", ends="complete"), what="both are told", within_s=120)
        check_after(seen, before, mended_ns)
        wait_until(lambda: not seen.node.left([stops["ID"]]), what="nothing of it is left")
