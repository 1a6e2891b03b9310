"""Quotas: stored, deleted, and their usage."""

from base64 import b64encode
from typing import Any

import pytest

from tests.builders import a_job
from tests.kit.state import AState
from wharf.cluster.operations import quotas
from wharf.cluster.operations.jobs import purge
from wharf.cluster.scheduling.capacity.quotas import sum_quota_usage
from wharf.cluster.state.tables import MEMBERS, NAMESPACES, QUOTAS
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.resources import (
    AllocatedCpu,
    AllocatedDevice,
    AllocatedMemory,
    AllocatedResources,
    AllocatedTaskResources,
)
from wharf.contract.model.cluster import Member
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.quotas import Quota, QuotaLimit, RegionLimit
from wharf.contract.model.refusal import Refusal, RefusalCode

LIMITS = (QuotaLimit(region="global", region_limit=RegionLimit(cpu=2_500, memory_mb=-1)),)


def store(state: AState, name: str = "tight", **fields: Any) -> int:
    return state.do(quotas.store_quota(state.replica, Quota(name=name, **{"limits": LIMITS, **fields})))


def get_stored(state: AState) -> Quota:
    quota = state.replica.get(QUOTAS, "tight")
    assert quota is not None
    return quota


def expect_refusal(state: AState, act: Any, *args: Any, **fields: Any) -> tuple[RefusalCode, str]:
    index = state.replica.index
    with pytest.raises(Refusal) as caught:
        act(state, *args, **fields)
    assert state.replica.index == index, "a refused request changes nothing"
    return caught.value.code, caught.value.text


def delete(state: AState, name: str = "tight") -> int:
    return state.do(quotas.delete_quota(state.replica, name))


def make_resources(cpu: int, memory_mb: int, *cores: int) -> AllocatedResources:
    device = AllocatedDevice(vendor="v", type="gpu", name="x", device_ids=("1", "2"))
    task = AllocatedTaskResources(
        cpu=AllocatedCpu(cpu_shares=cpu, reserved_cores=cores or None),
        memory=AllocatedMemory(memory_mb=memory_mb, memory_max_mb=0),
        devices=(device,),
    )
    return AllocatedResources(tasks={"server": task})


def test_a_quota_and_each_of_its_limits_has_a_hash() -> None:
    state = AState()

    index = store(state)

    quota = get_stored(state)
    assert (quota.create_index, quota.modify_index, len(quota.hash)) == (index, index, 32)
    assert [len(limit.hash) for limit in quota.limits or ()] == [32]


def test_storing_an_identical_record_writes_nothing() -> None:
    state = AState()
    index = store(state)

    assert (store(state), state.replica.index) == (index, index)


def test_a_quota_without_limits_or_with_two_for_a_region_is_refused() -> None:
    state = AState()

    assert "at least one limit should be specified" in expect_refusal(state, store, limits=None)[1]
    assert 'more than one limit for region "global"' in expect_refusal(state, store, limits=LIMITS * 2)[1]


def test_a_quota_used_by_a_namespace_cannot_be_deleted() -> None:
    state = AState()
    store(state)
    state.put(NAMESPACES.build_put(Namespace(name="team", quota="tight", create_index=WRITE_INDEX)))

    assert expect_refusal(state, delete) == (RefusalCode.INVALID, 'quota "tight" is still attached to namespaces: team')


def test_an_unused_quota_is_deleted_and_an_unknown_one_is_not_found() -> None:
    state = AState()
    store(state)

    delete(state)

    assert state.replica.get(QUOTAS, "tight") is None
    assert expect_refusal(state, delete) == (RefusalCode.NOT_FOUND, 'quota "tight" not found')


def test_the_usage_is_the_sum_over_occupying_allocations_of_its_namespaces() -> None:
    state = AState()
    state.with_node()
    store(state)
    state.put(
        MEMBERS.build_put(Member(id="m1", create_index=WRITE_INDEX)),
        NAMESPACES.build_put(Namespace(name="team", quota="tight", create_index=WRITE_INDEX)),
    )
    state.register(a_job("limited", namespace="team"))
    state.register(a_job("unlimited"))
    limited_job, other_job = state.job("limited", "team"), state.job("unlimited")
    state.with_allocation(limited_job, "a1", allocated_resources=make_resources(100, 50, 3, 4))
    state.with_allocation(
        limited_job, "a2", allocated_resources=make_resources(20, 5), client_status=ClientStatus.RUNNING
    )
    state.with_allocation(
        limited_job, "a3", allocated_resources=make_resources(7, 7), client_status=ClientStatus.COMPLETE
    )
    state.with_allocation(other_job, "a4", allocated_resources=make_resources(9, 9))

    usage = quotas.compute_quota_usage(state.replica, get_stored(state))

    (limit,) = get_stored(state).limits or ()
    assert usage.used == {
        b64encode(limit.hash).decode(): QuotaLimit(
            region="global",
            hash=limit.hash,
            region_limit=RegionLimit(
                cpu=20,  # The CPU of a1 consists of reserved cores, which count as cores.
                cores=2,
                memory_mb=55,
                memory_max_mb=55,
                count=2,
                devices=(RequestedDevice(name="v/gpu/x", count=4),),
            ),
        )
    }


def test_allocations_of_a_purged_job_count_until_their_nodes_have_stopped_them() -> None:
    state = AState()
    state.with_node()
    state.put(NAMESPACES.build_put(Namespace(name="team", quota="tight", create_index=WRITE_INDEX)))
    state.register(a_job("limited", namespace="team"))
    state.with_allocation(state.job("limited", "team"), "a1", client_status=ClientStatus.RUNNING)

    state.lead(purge.purge_job(state.replica, "team", "limited", state.moment, max_changes=100))

    assert sum_quota_usage(state.replica, "tight")["count"] == 1


def test_the_usage_of_other_regions_is_left_out() -> None:
    state = AState()
    state.put(MEMBERS.build_put(Member(id="m1", region="here", create_index=WRITE_INDEX)))
    store(state)

    assert quotas.compute_quota_usage(state.replica, get_stored(state)).used == {}


def test_a_quota_without_limits_has_no_usage() -> None:
    assert quotas.compute_quota_usage(AState().replica, Quota(name="tight", limits=None)).used == {}
