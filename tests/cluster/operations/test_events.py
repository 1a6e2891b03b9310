"""The events that commits produce, and which callers may subscribe to them (conventions 3.4)."""

import ast
from pathlib import Path
from typing import Any

import pytest

import wharf
from tests.builders import a_job
from tests.kit.state import a_node, an_allocation, an_evaluation
from wharf.cluster.access import ALL_RIGHTS, NO_RIGHTS, Rights, get_rights
from wharf.cluster.operations.events import (
    EVENT_MAPPINGS,
    EVENT_TYPES,
    TOPIC_PERMISSIONS,
    ChangedRecord,
    ClusterEvent,
    EventFilter,
    EventTopic,
    build_events,
    is_event_visible,
    parse_topics,
)
from wharf.contract.model.acl.roles import Role
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.node_pools import NodePool
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.model.variables import Variable
from wharf.contract.model.volumes import HostVolume

READ = 'namespace "default" { policy = "read" }'


def build_event(kind: str, table: str, record: Any, *, is_gone: bool = False) -> ClusterEvent:
    (event,) = build_events(kind, [ChangedRecord(table, record, is_gone)])
    return event


def make_filter(*topics: str, namespace: str = "default") -> EventFilter:
    return EventFilter(parse_topics(topics), namespace, frozenset({namespace}))


def make_rights(*rules: str) -> Rights:
    return get_rights(rules)


@pytest.mark.parametrize(
    ("table", "record", "expected"),
    [
        ("jobs", a_job(), (EventTopic.JOB, "shop", "default", None)),
        (
            "evaluations",
            an_evaluation(a_job(), deployment_id="d1"),
            (EventTopic.EVALUATION, "e1", "default", ("shop", "d1")),
        ),
        ("allocations", an_allocation(a_job()), (EventTopic.ALLOCATION, "a1", "default", ("shop", ""))),
        (
            "deployments",
            Deployment(id="d1", job_id="shop", namespace="default", status=DeploymentStatus.RUNNING),
            (EventTopic.DEPLOYMENT, "d1", "default", ("shop",)),
        ),
        ("nodes", a_node(), (EventTopic.NODE, "node-1", "", None)),
        ("node_pools", NodePool(name="gpu"), (EventTopic.NODE_POOL, "gpu", "", None)),
        (
            "services",
            ServiceRegistration(id="s1", service_name="web", namespace="default", job_id="shop"),
            (EventTopic.SERVICE, "s1", "default", ("shop", "web")),
        ),
        (
            "variables",
            Variable(namespace="default", path="a/b", data=b"", key_id=""),
            (EventTopic.VARIABLE, "a/b", "default", None),
        ),
        (
            "host_volumes",
            HostVolume(id="v1", name="data", plugin_id="mkdir"),
            (EventTopic.HOST_VOLUME, "", "default", ("v1", "data", "mkdir")),
        ),
        ("acl_roles", Role(id="r1", name="ops"), (EventTopic.ROLE, "r1", "", ("ops",))),
    ],
)
def test_each_record_becomes_an_event_with_topic_key_namespace_and_filter_keys(
    table: str, record: Any, expected: tuple[Any, ...]
) -> None:
    event = build_event("test", table, record)

    assert (event.topic, event.key, event.namespace, event.filter_keys) == expected


def list_topics(kind: str, *changes: ChangedRecord) -> list[tuple[str, bool]]:
    return [(event.topic.value, event.is_deleted) for event in build_events(kind, changes)]


def test_the_registered_job_comes_before_its_evaluation_in_any_order_of_the_write() -> None:
    job, evaluation = ChangedRecord("jobs", a_job()), ChangedRecord("evaluations", an_evaluation(a_job()))

    assert list_topics("job-registered", evaluation, job) == [("Job", False), ("Evaluation", False)]


def test_the_records_that_a_commit_is_about_come_first_and_the_others_keep_their_order() -> None:
    changes = [
        ChangedRecord("jobs", a_job()),
        ChangedRecord("evaluations", an_evaluation(a_job())),
        ChangedRecord("allocations", an_allocation(a_job())),
    ]

    assert [topic for topic, _ in list_topics("node-reported", *changes)] == ["Allocation", "Job", "Evaluation"]
    assert [topic for topic, _ in list_topics("plan", *changes)] == ["Job", "Evaluation", "Allocation"]


def test_deletions_come_last() -> None:
    job, evaluation = ChangedRecord("jobs", a_job(), True), ChangedRecord("evaluations", an_evaluation(a_job()))

    assert list_topics("job-purged", job, evaluation) == [("Evaluation", False), ("Job", True)]


def test_the_event_type_comes_from_the_kind_of_the_write() -> None:
    changes = [
        ChangedRecord("evaluations", an_evaluation(a_job())),
        ChangedRecord("allocations", an_allocation(a_job())),
    ]

    assert [event.type for event in build_events("plan", changes)] == ["PlanResult", "PlanResult"]


def test_the_default_event_type_comes_from_the_record() -> None:
    pool = NodePool(name="gpu")

    assert build_event("node-pool-stored", "node_pools", pool).type == "NodePoolUpserted"
    assert build_event("node-pool-deleted", "node_pools", pool, is_gone=True).type == "NodePoolDeleted"


@pytest.mark.parametrize("table", ["evaluations", "allocations", "deployments"])
def test_garbage_collection_produces_no_events(table: str) -> None:
    assert build_events("evaluations-collected", [ChangedRecord(table, an_evaluation(a_job()), is_deleted=True)]) == []


def test_every_write_kind_with_an_event_type_is_used() -> None:
    source = Path(wharf.__file__).parent / "cluster"
    words = {
        node.value
        for folder in ("operations", "scheduling", "controllers", "server")
        for path in (source / folder).rglob("*.py")
        if path.name != "events.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    assert set(EVENT_TYPES) - words == set()


def test_every_topic_has_a_table_and_a_permission() -> None:
    assert {mapping.topic for mapping in EVENT_MAPPINGS.values()} == set(EventTopic)
    assert set(EventTopic) <= set(TOPIC_PERMISSIONS)


# -- topics and keys


def test_without_a_topic_all_topics_are_subscribed() -> None:
    assert parse_topics(()) == {"*": {"*"}}


def test_keys_of_one_topic_are_combined() -> None:
    assert parse_topics(("Job:a", "Job:b", "Node")) == {"Job": {"a", "b"}, "Node": {"*"}}


def test_more_than_one_colon_is_refused() -> None:
    with pytest.raises(Refusal, match="Invalid key value pair for topic, topic: a:b:c"):
        parse_topics(("a:b:c",))


@pytest.mark.parametrize(
    ("topics", "matches"),
    [
        (("Evaluation",), True),
        (("Evaluation:e1",), True),
        (("Evaluation:shop",), True),
        (("Evaluation:sho",), False),
        (("Evaluation:*",), True),
        (("*:shop",), True),
        (("Job",), False),
        (("Job", "Evaluation:e1"), True),
        ((), True),
    ],
)
def test_an_event_matches_its_key_or_a_filter_key_exactly(topics: tuple[str, ...], matches: bool) -> None:
    event = build_event("plan", "evaluations", an_evaluation(a_job()))

    assert make_filter(*topics).matches(event) is matches


def test_events_without_a_namespace_match_every_namespace() -> None:
    node, job = build_event("x", "nodes", a_node()), build_event("x", "jobs", a_job())

    assert (make_filter(namespace="team").matches(node), make_filter(namespace="team").matches(job)) == (True, False)


# -- rights


@pytest.mark.parametrize(
    ("topics", "rules", "is_open"),
    [
        (("Job", "Evaluation", "Allocation", "Deployment", "Service"), READ, True),
        (("Node",), READ, False),
        (("Node",), 'node { policy = "read" }', True),
        (("Operator",), 'operator { policy = "read" }', True),
        (("Weather",), "", True),
        (("*",), READ, False),
    ],
)
def test_each_topic_requires_its_permission(topics: tuple[str, ...], rules: str, is_open: bool) -> None:
    assert (make_filter(*topics).find_forbidden_topic(make_rights(rules)) is None) is is_open


def test_a_management_token_receives_all_events_and_an_unknown_caller_none() -> None:
    event = build_event("x", "acl_roles", Role(id="r1"))

    assert (is_event_visible(ALL_RIGHTS, event), is_event_visible(NO_RIGHTS, event)) == (True, False)


def test_events_of_unreadable_namespaces_are_not_received() -> None:
    visible, existing = build_event("x", "jobs", a_job()), build_event("x", "jobs", a_job(namespace="team"))

    assert (is_event_visible(make_rights(READ), visible), is_event_visible(make_rights(READ), existing)) == (
        True,
        False,
    )


def test_a_deletion_without_an_event_does_not_hide_the_other_events() -> None:
    changes = [
        ChangedRecord("jobs", a_job("a"), is_deleted=False),
        ChangedRecord("evaluations", an_evaluation(a_job("a")), is_deleted=True),
        ChangedRecord("jobs", a_job("b"), is_deleted=False),
    ]

    assert [event.key for event in build_events("jobs-changed", changes)] == ["a", "b"]
