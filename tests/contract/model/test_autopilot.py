"""The health assessment of servers."""

from wharf.contract.model.operator.autopilot import (
    DEFAULT_AUTOPILOT_CONFIGURATION,
    ClusterHealth,
    ServerLogStatus,
    assess_cluster_health,
)

FRESH = ServerLogStatus(index=1_000, last_contact_ns=1_000_000)


def assess(log_statuses: dict[str, ServerLogStatus | None], **options: bool) -> ClusterHealth:
    return assess_cluster_health(
        log_statuses, newest_index=1_000, configuration=DEFAULT_AUTOPILOT_CONFIGURATION, **options
    )


def list_reasons(health: ClusterHealth) -> dict[str, str]:
    return {server.member_id: server.unhealthy_reason for server in health.servers}


def test_up_to_date_servers_are_healthy_and_all_but_one_may_fail() -> None:
    health = assess({"a": FRESH, "b": FRESH, "c": FRESH})

    assert (health.is_healthy, health.failures_tolerated) == (True, 2)


def test_one_server_tolerates_no_failure() -> None:
    assert assess({"a": FRESH}).failures_tolerated == 0


def test_a_log_on_a_single_server_tolerates_no_failure() -> None:
    assert assess({"a": FRESH, "b": FRESH}, is_single_server=True).failures_tolerated == 0


def test_each_unhealthy_server_is_reported_with_its_reason() -> None:
    health = assess(
        {
            "fine": FRESH,
            "silent": None,
            "new": ServerLogStatus(),
            "in an outage": ServerLogStatus(
                index=1_000, last_contact_ns=1, outage="the store has not replied since 03:07:49Z: etcd has no leader"
            ),
            "out of contact": ServerLogStatus(index=1_000, last_contact_ns=201_000_000),
            "slow": ServerLogStatus(index=749, last_contact_ns=0),
        }
    )

    assert list_reasons(health) == {
        "fine": "",
        "silent": "no reply",
        "new": "no contact with the log yet",
        "in an outage": "the store has not replied since 03:07:49Z: etcd has no leader",
        "out of contact": "last contact with the log 201 ms ago",
        "slow": "at log index 749, 251 behind",
    }
    assert (health.is_healthy, health.failures_tolerated) == (False, 0)


def test_servers_exactly_at_the_limits_are_healthy() -> None:
    health = assess({"a": ServerLogStatus(index=750, last_contact_ns=200_000_000)})

    assert list_reasons(health) == {"a": ""}


def test_a_cluster_without_a_leader_is_unhealthy() -> None:
    assert not assess({"a": FRESH}, can_decide=False).is_healthy


def test_a_cluster_without_servers_is_unhealthy() -> None:
    assert not assess({}).is_healthy
