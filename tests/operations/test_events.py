"""What commits tell, and who wants to hear it (conventions 3.4)."""

import ast
from pathlib import Path
from typing import Any

import pytest

import wharf
from tests.builders import a_job
from tests.kit.state import a_node, an_allocation, an_evaluation
from wharf.access import EVERY_RIGHT, NO_RIGHTS, Rights, rights_of
from wharf.model.deployment import Deployment, DeploymentStatus
from wharf.model.host_volume import HostVolume
from wharf.model.node_pool import NodePool
from wharf.model.refusal import Refusal
from wharf.model.registration import ServiceRegistration
from wharf.model.role import Role
from wharf.model.variable import Variable
from wharf.operations.events import (
    NEEDS,
    TOLD,
    TYPES,
    Change,
    Event,
    Interest,
    Topic,
    events_of,
    may_hear,
    parse_topics,
)

READ = 'namespace "default" { policy = "read" }'


def told(kind: str, table: str, record: Any, *, is_gone: bool = False) -> Event:
    (event,) = events_of(kind, [Change(table, record, is_gone)])
    return event


def interest(*topics: str, namespace: str = "default") -> Interest:
    return Interest(parse_topics(topics), namespace, frozenset({namespace}))


def rights(*rules: str) -> Rights:
    return rights_of(rules)


@pytest.mark.parametrize(
    ("table", "record", "expected"),
    [
        ("jobs", a_job(), (Topic.JOB, "shop", "default", None)),
        (
            "evaluations",
            an_evaluation(a_job(), deployment_id="d1"),
            (Topic.EVALUATION, "e1", "default", ("shop", "d1")),
        ),
        ("allocations", an_allocation(a_job()), (Topic.ALLOCATION, "a1", "default", ("shop", ""))),
        (
            "deployments",
            Deployment(id="d1", job_id="shop", namespace="default", status=DeploymentStatus.RUNNING),
            (Topic.DEPLOYMENT, "d1", "default", ("shop",)),
        ),
        ("nodes", a_node(), (Topic.NODE, "node-1", "", None)),
        ("node_pools", NodePool(name="gpu"), (Topic.NODE_POOL, "gpu", "", None)),
        (
            "services",
            ServiceRegistration(id="s1", service_name="web", namespace="default", job_id="shop"),
            (Topic.SERVICE, "s1", "default", ("shop", "web")),
        ),
        (
            "variables",
            Variable(namespace="default", path="a/b", data=b"", key_id=""),
            (Topic.VARIABLE, "a/b", "default", None),
        ),
        (
            "host_volumes",
            HostVolume(id="v1", name="data", plugin_id="mkdir"),
            (Topic.HOST_VOLUME, "", "default", ("v1", "data", "mkdir")),
        ),
        ("acl_roles", Role(id="r1", name="ops"), (Topic.ROLE, "r1", "", ("ops",))),
    ],
)
def test_each_record_is_told_under_its_topic_key_namespace_and_filter_keys(
    table: str, record: Any, expected: tuple[Any, ...]
) -> None:
    event = told("test", table, record)

    assert (event.topic, event.key, event.namespace, event.filter_keys) == expected


def test_the_type_comes_from_the_kind_of_the_commit_for_all_that_it_touched() -> None:
    changes = [Change("evaluations", an_evaluation(a_job())), Change("allocations", an_allocation(a_job()))]

    assert [event.type for event in events_of("plan", changes)] == ["PlanResult", "PlanResult"]


def test_where_the_kind_says_nothing_better_the_record_gives_the_type() -> None:
    pool = NodePool(name="gpu")

    assert told("node-pool-stored", "node_pools", pool).type == "NodePoolUpserted"
    assert told("node-pool-deleted", "node_pools", pool, is_gone=True).type == "NodePoolDeleted"


@pytest.mark.parametrize("table", ["evaluations", "allocations", "deployments"])
def test_what_is_collected_goes_without_a_word(table: str) -> None:
    assert events_of("evaluations-collected", [Change(table, an_evaluation(a_job()), is_gone=True)]) == []


def test_every_kind_that_has_a_type_of_its_own_is_written_somewhere() -> None:
    source = Path(wharf.__file__).parent
    words = {
        node.value
        for folder in ("operations", "scheduling", "controllers", "server")
        for path in (source / folder).rglob("*.py")
        if path.name != "events.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }

    assert set(TYPES) - words == set()


def test_every_topic_is_told_by_a_table_and_says_what_it_needs() -> None:
    assert {telling.topic for telling in TOLD.values()} == set(Topic)
    assert set(Topic) <= set(NEEDS)


# -- choosing


def test_no_topic_is_every_topic() -> None:
    assert parse_topics(()) == {"*": {"*"}}


def test_keys_of_one_topic_add_up() -> None:
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
def test_an_event_is_heard_by_its_key_or_a_filter_key_as_they_are(topics: tuple[str, ...], matches: bool) -> None:
    event = told("plan", "evaluations", an_evaluation(a_job()))

    assert interest(*topics).matches(event) is matches


def test_what_lies_in_no_namespace_passes_every_namespace() -> None:
    node, job = told("x", "nodes", a_node()), told("x", "jobs", a_job())

    assert (interest(namespace="team").matches(node), interest(namespace="team").matches(job)) == (True, False)


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
def test_each_topic_needs_its_right(topics: tuple[str, ...], rules: str, is_open: bool) -> None:
    assert interest(*topics).is_open_to(rights(rules)) is is_open


def test_management_hears_everything_and_nobody_nothing() -> None:
    event = told("x", "acl_roles", Role(id="r1"))

    assert (may_hear(EVERY_RIGHT, event), may_hear(NO_RIGHTS, event)) == (True, False)


def test_an_event_of_a_namespace_that_may_not_be_read_is_not_heard() -> None:
    here, there = told("x", "jobs", a_job()), told("x", "jobs", a_job(namespace="team"))

    assert (may_hear(rights(READ), here), may_hear(rights(READ), there)) == (True, False)
