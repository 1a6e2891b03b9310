"""Replication of records from the authoritative region."""

from typing import Any

import pytest

from tests.builders import a_job
from tests.kit.state import AState, Refused
from wharf.cluster.operations.replication import REPLICATED_TABLES, ReplicatedTable, build_replication_writes
from wharf.cluster.state.tables import ACL_POLICIES, ACL_TOKENS, NAMESPACES, NODE_POOLS
from wharf.contract.model.acl.policies import Policy
from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.node_pools import NodePool
from wharf.contract.model.times import to_datetime

OF: dict[str, ReplicatedTable] = {copied.table.name: copied for copied in REPLICATED_TABLES}


def replicate(state: AState, table: Any, *records: Any, changes_max: int = 100) -> int:
    """Replicate these records into the table; return the number of writes."""
    steps = list(
        build_replication_writes(state.replica, OF[table.name], records, region="main", max_changes=changes_max)
    )
    for step in steps:
        state.commit(step)
    return len(steps)


def make_policy(name: str, rules: str = "") -> Policy:
    return Policy(name=name, rules=rules, hash=(name + rules).encode(), create_index=WRITE_INDEX)


def test_new_changed_and_deleted_records_are_replicated() -> None:
    state = AState()
    replicate(state, ACL_POLICIES, make_policy("kept"), make_policy("changed"), make_policy("gone"))
    stored = state.replica.get(ACL_POLICIES, "kept")

    replicate(state, ACL_POLICIES, make_policy("kept"), make_policy("changed", "x"), make_policy("new"))

    assert [(policy.name, policy.rules) for policy in state.replica.iter_all(ACL_POLICIES)] == [
        ("changed", "x"),
        ("kept", ""),
        ("new", ""),
    ]
    assert state.replica.get(ACL_POLICIES, "kept") is stored


def test_unchanged_records_are_not_written() -> None:
    state = AState()
    replicate(state, ACL_POLICIES, make_policy("a"))

    assert replicate(state, ACL_POLICIES, make_policy("a")) == 0


def test_only_global_tokens_are_copied_and_local_ones_are_left_alone() -> None:
    state = AState()
    state.put(ACL_TOKENS.build_put(Token(accessor_id="local", hash=b"l", create_index=WRITE_INDEX)))
    state.put(ACL_TOKENS.build_put(Token(accessor_id="old", global_=True, hash=b"o", create_index=WRITE_INDEX)))

    replicate(
        state,
        ACL_TOKENS,
        Token(accessor_id="theirs", hash=b"t", create_index=7),
        Token(accessor_id="shared", global_=True, hash=b"s", create_index=8),
    )

    assert sorted(token.accessor_id for token in state.replica.iter_all(ACL_TOKENS)) == ["local", "shared"]


def test_a_token_that_was_created_again_replaces_its_copy_even_if_the_hash_is_the_same() -> None:
    state = AState()
    first, again = (
        Token(accessor_id="t", global_=True, hash=b"h", secret_digest=digest, create_time=to_datetime(time_ns))
        for digest, time_ns in (("old", 0), ("new", 1_000))
    )
    replicate(state, ACL_TOKENS, first)

    replicate(state, ACL_TOKENS, again)

    assert [token.secret_digest for token in state.replica.iter_all(ACL_TOKENS)] == ["new"]


def test_the_default_namespace_is_every_regions_own() -> None:
    state = AState()

    replicate(state, NAMESPACES, Namespace(name="default", description="theirs"), Namespace(name="web", hash=b"w"))

    described = {namespace.name: namespace.description for namespace in state.replica.iter_all(NAMESPACES)}
    assert described == {"default": "Default shared namespace", "web": ""}


def test_replication_writes_fit_in_a_write_and_may_be_interrupted() -> None:
    state = AState()
    policies = [make_policy(f"p{number}") for number in range(5)]
    first = next(
        iter(build_replication_writes(state.replica, OF["acl_policies"], policies, region="main", max_changes=2))
    )
    state.commit(first)

    assert replicate(state, ACL_POLICIES, *policies, changes_max=2) == 2
    assert state.replica.count_records(ACL_POLICIES) == 5


def test_an_outdated_replication_write_changes_nothing() -> None:
    state = AState()
    step = next(
        iter(
            build_replication_writes(
                state.replica, OF["acl_policies"], [make_policy("a")], region="main", max_changes=9
            )
        )
    )
    state.put(ACL_POLICIES.build_put(make_policy("a", "newer")))

    with pytest.raises(Refused):
        state.commit(step)


def test_a_namespace_with_a_job_stays_although_the_other_region_deleted_it() -> None:
    state = AState()
    replicate(state, NAMESPACES, Namespace(name="web", hash=b"w"), Namespace(name="web2", hash=b"w"))
    state.register(a_job(namespace="web"))

    replicate(state, NAMESPACES)

    assert [namespace.name for namespace in state.replica.iter_all(NAMESPACES)] == ["default", "web"]


@pytest.mark.parametrize("use", ["node", "job", ""])
def test_a_node_pool_with_a_node_or_a_job_stays_although_the_other_region_deleted_it(use: str) -> None:
    state = AState()
    replicate(state, NODE_POOLS, NodePool(name="gpu", hash=b"g"))
    if use == "node":
        state.with_node(node_pool="gpu")
    if use == "job":
        state.register(a_job(node_pool="gpu"))

    replicate(state, NODE_POOLS)

    assert (state.replica.get(NODE_POOLS, "gpu") is not None) is bool(use)
