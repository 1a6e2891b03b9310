"""Heartbeat deadlines of nodes (scheduling.md 9.1)."""

import heapq
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from wharf.cluster.controllers.deadlines import NEVER_S
from wharf.cluster.controllers.heartbeats import HeartbeatDeadlines, HeartbeatSettings

SETTINGS = HeartbeatSettings(min_ttl_s=10.0, grace_s=5.0, failover_ttl_s=300.0, max_per_second=50.0)


def make_heartbeats() -> HeartbeatDeadlines:
    return HeartbeatDeadlines(SETTINGS, Random(7))


def test_a_node_is_late_after_its_ttl_and_grace_have_passed() -> None:
    heartbeats = make_heartbeats()
    ttl_s = heartbeats.record_heartbeat("a", 100.0)

    assert heartbeats.next_deadline_s() == 100.0 + ttl_s + 5.0
    assert heartbeats.take_late(100.0 + ttl_s + 4.9) == []
    assert heartbeats.take_late(100.0 + ttl_s + 5.0) == ["a"]


def test_a_late_node_is_returned_once() -> None:
    heartbeats = make_heartbeats()
    heartbeats.record_heartbeat("a", 0.0)
    heartbeats.take_late(1_000.0)

    assert (heartbeats.take_late(2_000.0), heartbeats.next_deadline_s()) == ([], NEVER_S)


def test_a_node_that_sends_another_heartbeat_is_not_late() -> None:
    heartbeats = make_heartbeats()
    heartbeats.record_heartbeat("a", 0.0)
    heartbeats.record_heartbeat("a", 20.0)

    assert heartbeats.take_late(30.0) == []


@given(seed=st.integers(), times_s=st.lists(st.floats(0.0, 100.0), min_size=1, max_size=5))
def test_a_node_is_not_late_before_the_end_of_any_ttl_that_it_got(seed: int, times_s: list[float]) -> None:
    heartbeats = HeartbeatDeadlines(SETTINGS, Random(seed))
    granted_until_s = 0.0
    for now_s in sorted(times_s):
        assume(now_s < granted_until_s or not granted_until_s)  # Else the node may be late.
        granted_until_s = max(granted_until_s, now_s + heartbeats.record_heartbeat("a", now_s))

    assert heartbeats.take_late(granted_until_s + 4.9) == []


def test_a_heartbeat_does_not_shorten_the_ttl_of_a_former_leader() -> None:
    heartbeats = make_heartbeats()
    heartbeats.longest_ttl_s = 20.0
    heartbeats.grant_failover_ttl("a", 50.0, 300.0)

    heartbeats.record_heartbeat("a", 51.0)

    assert heartbeats.next_deadline_s() == 51.0 + 20.0 + 5.0


@pytest.mark.parametrize(("nodes", "shortest_s"), [(1, 10.0), (500, 10.0), (1_000, 20.0)])
def test_the_ttl_grows_with_the_fleet_and_is_random_up_to_its_double(nodes: int, shortest_s: float) -> None:
    heartbeats = make_heartbeats()
    for number in range(nodes):
        heartbeats.record_heartbeat(f"node-{number}", 0.0)

    ttls_s = [heartbeats.record_heartbeat("node-0", 0.0) for _ in range(200)]

    assert min(ttls_s) >= shortest_s
    assert max(ttls_s) < 2 * shortest_s
    assert max(ttls_s) - min(ttls_s) > shortest_s / 2


def test_a_new_leader_gives_every_node_the_failover_ttl() -> None:
    heartbeats = make_heartbeats()

    heartbeats.grant_failover_ttl("a", 50.0, 300.0)

    assert heartbeats.next_deadline_s() == 350.0


@pytest.mark.parametrize(
    ("longest_ttl_s", "expected_s"), [(20.0, 300.0), (300.0, 420.0), (400.0, 560.0), (600.0, 840.0)]
)
def test_a_new_leader_waits_for_the_longest_ttl_and_twice_its_grace(longest_ttl_s: float, expected_s: float) -> None:
    assert SETTINGS.compute_failover_ttl_s(longest_ttl_s) == expected_s


@pytest.mark.parametrize(
    ("stored_s", "nodes", "expected_s"),
    [
        (0.0, 500, 0.0),  # 20 s need not be stored.
        (0.0, 1_000, 44.0),
        (44.0, 1_100, 44.0),
        (44.0, 1_101, 1.1 * 44.04),
        (44.0, 800, 44.0),
        (44.0, 700, 1.1 * 28.0),
        (44.0, 10, 0.0),
    ],
)
def test_the_stored_ttl_follows_the_size_of_the_fleet_in_steps(stored_s: float, nodes: int, expected_s: float) -> None:
    assert SETTINGS.compute_stored_ttl_s(stored_s, nodes) == pytest.approx(expected_s)


def test_no_ttl_is_longer_than_the_one_that_is_stored() -> None:
    heartbeats = make_heartbeats()
    for number in range(1_000):
        heartbeats.record_heartbeat(f"node-{number}", 0.0)
    heartbeats.longest_ttl_s = 20.0

    ttls_s = [heartbeats.record_heartbeat("node-0", 0.0) for _ in range(200)]

    assert max(ttls_s) <= 20.0
    assert max(ttls_s) - min(ttls_s) > 5.0  # They stay spread over time.


def test_a_removed_node_is_never_late() -> None:
    heartbeats = make_heartbeats()
    heartbeats.record_heartbeat("a", 0.0)

    heartbeats.remove("a")

    assert (heartbeats.take_late(1_000.0), heartbeats.next_deadline_s()) == ([], NEVER_S)


def test_is_expected_reports_whether_a_heartbeat_is_awaited() -> None:
    heartbeats = make_heartbeats()
    heartbeats.record_heartbeat("a", 0.0)

    assert (heartbeats.is_expected("a"), heartbeats.is_expected("b")) == (True, False)


@pytest.mark.parametrize("nodes", [1_000, 5_000, 20_000])
def test_the_rate_of_heartbeats_has_a_ceiling_whatever_the_size_of_the_fleet(nodes: int) -> None:
    heartbeats = make_heartbeats()
    due_s = [(heartbeats.record_heartbeat(f"node-{number}", 0.0), f"node-{number}") for number in range(nodes)]
    settle_s = 2 * nodes / SETTINGS.max_per_second  # By then, every node has a TTL for the whole fleet.
    measured_s = 2 * settle_s
    heapq.heapify(due_s)
    sent = 0
    while due_s[0][0] < settle_s + measured_s:
        now_s, node_id = due_s[0]
        sent += now_s >= settle_s
        heapq.heapreplace(due_s, (now_s + heartbeats.record_heartbeat(node_id, now_s), node_id))

    assert sent / measured_s <= SETTINGS.max_per_second


@pytest.mark.parametrize(("nodes", "expected_grace_s"), [(1, 5.0), (5_000, None)])
def test_the_grace_grows_with_the_ttl_of_a_large_fleet(nodes: int, expected_grace_s: float | None) -> None:
    heartbeats = make_heartbeats()
    for number in range(1, nodes):
        heartbeats.record_heartbeat(f"node-{number}", 0.0)
    ttl_s = heartbeats.record_heartbeat("node-0", 0.0)
    for number in range(1, nodes):
        heartbeats.grant_failover_ttl(f"node-{number}", 10_000.0, 300.0)

    grace_s = ttl_s / 5 if expected_grace_s is None else expected_grace_s

    assert heartbeats.take_late(ttl_s + grace_s - 0.01) == []
    assert heartbeats.take_late(ttl_s + grace_s + 0.01) == ["node-0"]
