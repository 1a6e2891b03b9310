"""Node pools: stored and deleted (nodes-allocations.md 1.5)."""

from typing import Any

import pytest

from tests.builders import a_job
from tests.kit.state import AState, a_node
from wharf.cluster.operations import node_pools
from wharf.cluster.state.tables import NODE_POOLS
from wharf.contract.model.node_pools import NodePool, NodePoolSchedulerConfiguration
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.refusal import Refusal, RefusalCode


def store(state: AState, name: str = "gpu", **fields: Any) -> int:
    return state.do(node_pools.store_node_pool(state.replica, NodePool(name=name, **fields)))


def delete(state: AState, name: str = "gpu") -> int:
    return state.do(node_pools.delete_node_pool(state.replica, name, region="global"))


def expect_refusal(state: AState, act: Any, *args: Any, **fields: Any) -> tuple[RefusalCode, str]:
    index = state.replica.index
    with pytest.raises(Refusal) as caught:
        act(state, *args, **fields)
    assert state.replica.index == index, "a refused request changes nothing"
    return caught.value.code, caught.value.text


def test_a_pool_is_stored_with_its_scheduler_configuration() -> None:
    state = AState()
    own = NodePoolSchedulerConfiguration(scheduler_algorithm="spread")

    index = store(state, description="with cards", scheduler_configuration=own)

    pool = state.replica.get(NODE_POOLS, "gpu")
    assert pool is not None
    assert (pool.description, pool.scheduler_configuration) == ("with cards", own)
    assert (pool.create_index, pool.modify_index, len(pool.hash)) == (index, index, 32)


def test_an_identical_pool_writes_nothing_and_a_change_keeps_the_create_index() -> None:
    state = AState()
    created = store(state)

    repeated = store(state)
    changed = store(state, description="other")

    pool = state.replica.get(NODE_POOLS, "gpu")
    assert pool is not None
    assert (repeated, pool.create_index, pool.modify_index) == (created, created, changed)


@pytest.mark.parametrize("name", ["all", "default"])
def test_a_built_in_pool_can_be_neither_changed_nor_deleted(name: str) -> None:
    state = AState()

    assert expect_refusal(state, store, name, description="x") == (
        RefusalCode.INVALID,
        f'modifying node pool "{name}" is not allowed',
    )
    assert expect_refusal(state, delete, name) == (RefusalCode.INVALID, f'deleting node pool "{name}" is not allowed')


def test_all_problems_of_a_pool_are_reported_together() -> None:
    own = NodePoolSchedulerConfiguration(scheduler_algorithm="best")

    code, text = expect_refusal(AState(), store, "a b", scheduler_configuration=own)

    assert code is RefusalCode.INVALID
    assert text == (
        "2 errors occurred:\n"
        '\t* invalid name "a b". Must match regex ^[a-zA-Z0-9-_]{1,128}$\n'
        "\t* invalid scheduler algorithm: best"
    )


def test_an_unknown_pool_cannot_be_deleted() -> None:
    assert expect_refusal(AState(), delete) == (RefusalCode.NOT_FOUND, "node pool gpu not found")


def test_a_pool_with_nodes_and_jobs_cannot_be_deleted_and_each_reason_is_listed() -> None:
    state = AState()
    store(state)
    state.with_node("node-1", node_pool="gpu")
    state.register(a_job(node_pool="gpu"))

    code, text = expect_refusal(state, delete)

    assert code is RefusalCode.INVALID
    assert text == (
        "2 errors occurred:\n"
        '\t* node pool "gpu" has nodes in regions: [global]: node-1\n'
        '\t* node pool "gpu" has non-terminal jobs in regions: [global]: default/shop'
    )


def test_at_most_ten_blocking_nodes_are_named() -> None:
    state = AState()
    store(state)
    for number in range(12):
        state.with_node(f"node-{number:02}", node_pool="gpu")

    assert "node-09 and 2 more" in expect_refusal(state, delete)[1]


def test_a_pool_used_only_by_dead_jobs_is_deleted() -> None:
    state = AState()
    store(state)
    state.register(a_job(node_pool="gpu", stop=True))

    delete(state)

    assert state.replica.get(NODE_POOLS, "gpu") is None


def ensure_pool(state: AState, node: Node) -> int:
    return state.do(node_pools.ensure_node_pool(state.replica, node))


def test_an_unknown_pool_is_created_with_its_first_node() -> None:
    state = AState()

    ensure_pool(state, a_node(node_pool="gpu"))

    pool = state.replica.get(NODE_POOLS, "gpu")
    assert pool is not None
    assert len(pool.hash) == 32


def test_an_existing_pool_is_not_changed_by_a_node() -> None:
    state = AState()
    index = store(state, description="ours")

    ensure_pool(state, a_node(node_pool="gpu"))

    assert state.replica.index == index


def test_no_pool_is_created_for_a_node_with_a_wrong_secret() -> None:
    state = AState()
    state.with_node()

    ensure_pool(state, a_node(node_pool="gpu", secret_digest="another"))

    assert state.replica.get(NODE_POOLS, "gpu") is None


def test_nodes_create_no_further_pools_in_a_cluster_with_very_many() -> None:
    state = AState()
    while state.replica.count_records(NODE_POOLS) < node_pools.MAX_POOLS_FOR_REGISTRATIONS:
        ensure_pool(state, a_node(node_pool=f"pool-{state.replica.index}"))

    refusal = expect_refusal(state, ensure_pool, a_node(node_pool="one-more"))

    assert "wharf node pool apply one-more" in refusal[1]
    assert store(state, "one-more") == state.replica.index
    assert ensure_pool(state, a_node(node_pool="one-more")) == state.replica.index
