"""References between records: no parent is deleted while a record that needs it is created, in whatever order they commit."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.builders import a_job
from tests.kit.state import SETTINGS, AState
from wharf.cluster.access.binding_rules import list_binding_rules
from wharf.cluster.engines.port import Committed, WriteConflict
from wharf.cluster.operations import namespaces, node_pools, quotas, replication, variables, volumes
from wharf.cluster.operations.acl import auth_methods, binding_rules
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.derived_state import add_derived_changes
from wharf.cluster.operations.jobs import registration, scaling
from wharf.cluster.operations.nodes.registration import register_node
from wharf.cluster.operations.references import REFERENCES
from wharf.cluster.operations.variables import VariableKey
from wharf.cluster.scheduling.capacity.quotas import get_remaining_quota
from wharf.cluster.state.tables import (
    ACL_AUTH_METHODS,
    ACL_BINDING_RULES,
    ALL_TABLES,
    HOST_VOLUMES,
    JOBS,
    KEYRING,
    NAMESPACES,
    NODE_POOLS,
    NODES,
    QUOTAS,
    VARIABLES,
)
from wharf.contract.model.acl.auth_methods import AuthMethod, AuthMethodConfig, AuthMethodType, TokenLocality
from wharf.contract.model.acl.binding_rules import BindingRule, BindType
from wharf.contract.model.acl.tokens import LifetimeLimits
from wharf.contract.model.cluster import KeyringKey
from wharf.contract.model.jobs.job import JobStatus
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.node_pools import NodePool
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.quotas import Quota, QuotaLimit, RegionLimit
from wharf.contract.model.secrets import SealedData
from wharf.contract.model.volumes import HostVolume, HostVolumeCapability

HOUR = 3_600_000_000_000
REGION = "global"
Decide = Callable[[AState], Decision[Any]]


def make_state() -> AState:
    """Return a state with one of each parent, a node and a dead job in the namespace and the pool."""
    state = AState()
    state.put(
        NAMESPACES.build_put(Namespace(name="team", create_index=WRITE_INDEX)),
        QUOTAS.build_put(
            Quota(
                name="small",
                limits=(QuotaLimit(region=REGION, region_limit=RegionLimit(cpu=1)),),
                create_index=WRITE_INDEX,
            )
        ),
        NODE_POOLS.build_put(NodePool(name="gpu", create_index=WRITE_INDEX)),
        KEYRING.build_put(KeyringKey(key_id="key-1", create_index=WRITE_INDEX)),
        JOBS.build_put(
            a_job("dead", namespace="team", node_pool="gpu", status=JobStatus.DEAD, create_index=WRITE_INDEX)
        ),
    )
    state.with_node(node_pool="default")
    state.do(store_method(state))
    return state


def store_method(state: AState, name: str = "corp") -> Decision[Any]:
    method = AuthMethod(
        name=name,
        type=AuthMethodType.JWT,
        token_locality=TokenLocality.LOCAL,
        max_token_ttl=HOUR,
        config=AuthMethodConfig(jwt_validation_pub_keys=("key",)),
    )
    return auth_methods.store_auth_method(
        state.replica, method, state.moment, sealed_secrets=None, limits=LifetimeLimits()
    )


def register(state: AState, **fields: Any) -> Decision[Any]:
    request = registration.JobRegistration(job=a_job("new", **fields))
    return registration.register_job(state.replica, request, state.moment, SETTINGS)


def evaluate(state: AState) -> Decision[Any]:
    """Return the decision as the leader commits it: with the new status of the job."""
    decision = registration.evaluate_job(state.replica, "team", "dead", state.moment)
    assert decision.write is not None
    return Decision(add_derived_changes(state.replica, decision.write), lambda index: index)


def scale(state: AState) -> Decision[Any]:
    request = scaling.GroupScaling(namespace="team", job_id="dead", group="web", count=3)
    return scaling.scale_group(state.replica, request, state.moment, SETTINGS)


def create_volume(state: AState) -> Decision[Any]:
    volume = HostVolume(
        name="data",
        namespace="team",
        node_id="node-1",
        host_path="/srv/data",
        requested_capabilities=(HostVolumeCapability(),),
    )
    return volumes.register_volume(state.replica, volume, state.moment)


CREATIONS: dict[tuple[str, str], list[Decide]] = {
    (JOBS.name, NAMESPACES.name): [
        lambda state: register(state, namespace="team"),
        evaluate,
        scale,
    ],
    (VARIABLES.name, NAMESPACES.name): [
        lambda state: variables.put_variable(
            state.replica, VariableKey("team", "db"), SealedData(b"x", "key-1"), state.moment
        )
    ],
    (HOST_VOLUMES.name, NAMESPACES.name): [create_volume],
    (NAMESPACES.name, QUOTAS.name): [
        lambda state: namespaces.store_namespace(state.replica, Namespace(name="team", quota="small")),
        lambda state: namespaces.store_namespace(state.replica, Namespace(name="new", quota="small")),
    ],
    (JOBS.name, NODE_POOLS.name): [lambda state: register(state, node_pool="gpu"), scale],
    (NODES.name, NODE_POOLS.name): [
        lambda state: register_node(
            state.replica, Node(id="node-2", secret_digest="d", node_pool="gpu"), state.moment, max_evaluations=5
        )
    ],
    (ACL_BINDING_RULES.name, ACL_AUTH_METHODS.name): [
        lambda state: binding_rules.store_binding_rule(
            state.replica,
            BindingRule(id="", auth_method="corp", bind_type=BindType.MANAGEMENT),
            state.moment,
            state.world.new_id,
        )
    ],
}
"""By child and parent table, all kinds of writes that create such a reference or make a dead one active again."""

DELETIONS: dict[str, list[Decide]] = {
    NAMESPACES.name: [lambda state: namespaces.delete_namespace(state.replica, "team", region=REGION)],
    QUOTAS.name: [lambda state: quotas.delete_quota(state.replica, "small")],
    NODE_POOLS.name: [lambda state: node_pools.delete_node_pool(state.replica, "gpu", region=REGION)],
    ACL_AUTH_METHODS.name: [lambda state: auth_methods.delete_auth_method(state.replica, "corp", max_changes=100)],
}

RACES = [
    pytest.param(create, delete, id=f"{child}-{number}-{parent}")
    for (child, parent), creations in CREATIONS.items()
    for number, create in enumerate(creations)
    for delete in DELETIONS[parent]
]


def test_the_races_cover_all_references() -> None:
    assert {(reference.child.name, reference.parent.name) for reference in REFERENCES} == CREATIONS.keys()


@pytest.mark.parametrize(("create", "delete"), RACES)
@pytest.mark.parametrize("deletes_first", [False, True])
def test_of_a_creation_and_the_deletion_of_its_parent_one_conflicts(
    create: Decide, delete: Decide, deletes_first: bool
) -> None:
    state = make_state()
    decisions = [create(state), delete(state)]  # Both see the same state.
    if deletes_first:
        decisions.reverse()

    outcomes = [state.try_commit(decision.write) for decision in decisions if decision.write is not None]

    assert [type(outcome) for outcome in outcomes] == [Committed, WriteConflict]


@pytest.mark.parametrize(("create", "delete"), RACES)
def test_a_parent_without_a_race_is_deleted(create: Decide, delete: Decide) -> None:
    state = make_state()
    state.put(NAMESPACES.build_put(Namespace(name="other", create_index=WRITE_INDEX)))

    assert state.do(delete(state)) == state.replica.index
    assert create is not delete


@pytest.mark.parametrize("creations", CREATIONS.values(), ids=["-".join(key) for key in CREATIONS])
def test_creations_under_one_parent_do_not_conflict_with_each_other(creations: list[Decide]) -> None:
    state = make_state()
    first = creations[0](state)
    request = registration.JobRegistration(job=a_job("another", namespace="team", node_pool="gpu"))
    second = registration.register_job(state.replica, request, state.moment, SETTINGS)

    assert first.write is not None
    assert second.write is not None
    changed = {(change.table, change.key) for change in first.write.changes}
    other_conditions = {(each.table, each.key) for each in second.write.conditions}
    if not changed & other_conditions:  # A namespace that is stored again is itself a parent.
        assert [type(state.try_commit(each.write)) for each in (first, second) if each.write] == [Committed, Committed]


PARENT_FIELDS = {"namespace", "quota", "node_pool", "auth_method"}
DERIVED_TABLES = {
    "job_versions", "job_submissions", "job_purges", "job_summaries", "evaluations", "allocations", "deployments",
    "periodic_launches", "scaling_policies", "scaling_events", "services", "array_attempts", "array_results",
    "job_results", "step_outputs",
}  # fmt: skip
"""Tables whose records are written with their job or because of it. They end or are collected with it."""


def test_each_record_field_that_names_a_parent_is_a_reference() -> None:
    fields = {
        (table.name, field)
        for table in ALL_TABLES
        if table.name not in DERIVED_TABLES
        for field in PARENT_FIELDS & set(table.record_type.__struct_fields__)
    }
    parents = {"namespace": NAMESPACES, "quota": QUOTAS, "node_pool": NODE_POOLS, "auth_method": ACL_AUTH_METHODS}
    known = {
        (reference.child.name, field)
        for reference in REFERENCES
        for field, parent in parents.items()
        if parent is reference.parent
    }

    # The pool of a volume is that of its node when the volume was created.
    assert fields - known == {(HOST_VOLUMES.name, "node_pool")}


# -- a state that an earlier release wrote


def test_a_namespace_whose_quota_does_not_exist_places_nothing_and_says_why() -> None:
    state = make_state()
    state.put(NAMESPACES.build_put(Namespace(name="orphan", quota="gone", create_index=WRITE_INDEX)))
    state.with_node("node-9", node_pool="default")

    remaining = get_remaining_quota(state.replica, "orphan", REGION)

    assert remaining is not None
    assert remaining.list_exceeded_limits({"count": 1}) == (
        'quota "gone" of namespace "orphan" does not exist: create it, or store the namespace without it',
    )
    state.do(namespaces.store_namespace(state.replica, Namespace(name="orphan")))
    assert get_remaining_quota(state.replica, "orphan", REGION) is None
    state.do(namespaces.delete_namespace(state.replica, "orphan", region=REGION))


def test_a_rule_of_a_deleted_auth_method_has_no_effect_for_a_new_method_and_is_deleted_with_it() -> None:
    state = AState()
    rule = BindingRule(id="rule-1", auth_method="corp", bind_type=BindType.MANAGEMENT, create_index=WRITE_INDEX)
    state.put(ACL_BINDING_RULES.build_put(rule))

    state.do(store_method(state))

    assert state.replica.get(ACL_BINDING_RULES, "rule-1") is None


def test_a_rule_that_is_older_than_its_auth_method_grants_nothing() -> None:
    state = AState()
    rule = BindingRule(id="rule-1", auth_method="corp", bind_type=BindType.MANAGEMENT, create_index=WRITE_INDEX)
    state.put(ACL_BINDING_RULES.build_put(rule))
    method = AuthMethod(name="corp", type=AuthMethodType.JWT, create_index=WRITE_INDEX)
    state.put(ACL_AUTH_METHODS.build_put(method))
    stored = state.replica.get(ACL_AUTH_METHODS, "corp")
    assert stored is not None

    assert list_binding_rules(state.replica, stored) == []


def test_a_variable_in_a_deleted_namespace_can_be_deleted() -> None:
    state = make_state()
    key = VariableKey("team", "db")
    state.do(variables.put_variable(state.replica, key, SealedData(b"x", "key-1"), state.moment))
    state.put(NAMESPACES.build_delete("team"))

    state.do(variables.delete_variable(state.replica, key))
    state.do(registration.deregister_job(state.replica, "team", "dead", state.moment, settings=SETTINGS))

    assert state.replica.count_records(VARIABLES) == 0
    assert state.job("dead", "team").stop


# -- replication


@pytest.mark.parametrize("create", [CREATIONS[VARIABLES.name, NAMESPACES.name][0], create_volume])
def test_a_replicated_namespace_with_content_stays_until_it_is_empty(create: Decide) -> None:
    state = make_state()
    state.put(JOBS.build_delete("team", "dead"))
    replicated = next(each for each in replication.REPLICATED_TABLES if each.table is NAMESPACES)

    def build_writes() -> list[Any]:
        return list(replication.build_replication_writes(state.replica, replicated, [], region="main", max_changes=100))

    (deletion,) = build_writes()
    state.do(create(state))

    assert isinstance(state.try_commit(deletion), WriteConflict)
    assert build_writes() == []


def test_a_replicated_quota_stays_while_a_namespace_has_it() -> None:
    state = make_state()
    state.do(namespaces.store_namespace(state.replica, Namespace(name="team", quota="small")))
    replicated = next(each for each in replication.REPLICATED_TABLES if each.table is QUOTAS)

    writes = list(replication.build_replication_writes(state.replica, replicated, [], region="main", max_changes=100))

    assert writes == []
