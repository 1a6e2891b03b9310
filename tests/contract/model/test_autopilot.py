"""When the cluster's servers count as healthy."""

from wharf.contract.model.operator.autopilot import (
    DEFAULT_AUTOPILOT_CONFIGURATION,
    ClusterHealth,
    ServerLogStatus,
    assess_cluster_health,
)

FRESH = ServerLogStatus(index=1_000, last_contact_ns=1_000_000)


def judged(standings: dict[str, ServerLogStatus | None], **options: bool) -> ClusterHealth:
    return assess_cluster_health(
        standings, newest_index=1_000, configuration=DEFAULT_AUTOPILOT_CONFIGURATION, **options
    )


def whys(health: ClusterHealth) -> dict[str, str]:
    return {server.member_id: server.unhealthy_reason for server in health.servers}


def test_servers_in_contact_that_keep_up_are_healthy_and_all_but_one_may_fail() -> None:
    health = judged({"a": FRESH, "b": FRESH, "c": FRESH})

    assert (health.is_healthy, health.failures_tolerated) == (True, 2)


def test_one_server_tolerates_no_failure() -> None:
    assert judged({"a": FRESH}).failures_tolerated == 0


def test_a_log_of_one_server_tolerates_no_failure_whatever_its_members() -> None:
    assert judged({"a": FRESH, "b": FRESH}, is_single_server=True).failures_tolerated == 0


def test_each_unhealthy_server_is_told_with_its_reason() -> None:
    health = judged(
        {
            "fine": FRESH,
            "silent": None,
            "new": ServerLogStatus(),
            "out of contact": ServerLogStatus(index=1_000, last_contact_ns=201_000_000),
            "slow": ServerLogStatus(index=749, last_contact_ns=0),
        }
    )

    assert whys(health) == {
        "fine": "",
        "silent": "it does not answer",
        "new": "it has not heard of the log yet",
        "out of contact": "it heard of the log 201 ms ago",
        "slow": "it stands at index 749, 251 behind",
    }
    assert (health.is_healthy, health.failures_tolerated) == (False, 0)


def test_bounds_themselves_are_healthy() -> None:
    health = judged({"a": ServerLogStatus(index=750, last_contact_ns=200_000_000)})

    assert whys(health) == {"a": ""}


def test_without_a_leader_no_cluster_is_healthy() -> None:
    assert not judged({"a": FRESH}, can_decide=False).is_healthy


def test_nobody_is_not_healthy() -> None:
    assert not judged({}).is_healthy
