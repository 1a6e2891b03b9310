"""Namespaces: stored and deleted (conventions 4.1)."""

from typing import Any

import pytest

from tests.builders import a_job
from tests.kit.state import SETTINGS, AState
from wharf.cluster.engines.port import WriteConflict
from wharf.cluster.operations import namespaces
from wharf.cluster.operations.jobs import registration
from wharf.cluster.state.tables import HOST_VOLUMES, NAMESPACES, QUOTAS, VARIABLES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.quotas import Quota
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.variables import Variable
from wharf.contract.model.volumes import HostVolume


def store(state: AState, name: str = "team", **fields: Any) -> int:
    return state.do(namespaces.store_namespace(state.replica, Namespace(name=name, **fields)))


def delete(state: AState, name: str = "team") -> int:
    return state.do(namespaces.delete_namespace(state.replica, name, region="global"))


def expect_store_refusal(state: AState, name: str = "team", **fields: Any) -> tuple[RefusalCode, str]:
    index = state.replica.index
    with pytest.raises(Refusal) as caught:
        store(state, name, **fields)
    assert state.replica.index == index, "a refused request changes nothing"
    return caught.value.code, caught.value.text


def expect_delete_refusal(state: AState, name: str = "team") -> tuple[RefusalCode, str]:
    index = state.replica.index
    with pytest.raises(Refusal) as caught:
        delete(state, name)
    assert state.replica.index == index, "a refused request changes nothing"
    return caught.value.code, caught.value.text


def get_stored(state: AState, name: str = "team") -> Namespace:
    namespace = state.replica.get(NAMESPACES, name)
    assert namespace is not None
    return namespace


def test_a_namespace_is_stored_with_its_hash_and_indexes() -> None:
    state = AState()

    index = store(state, description="ours", meta={"a": "b"})

    namespace = get_stored(state)
    assert (namespace.description, namespace.meta) == ("ours", {"a": "b"})
    assert (namespace.create_index, namespace.modify_index, len(namespace.hash)) == (index, index, 32)


def test_a_change_keeps_the_create_index() -> None:
    state = AState()
    created = store(state)

    changed = store(state, description="other")

    assert (get_stored(state).create_index, get_stored(state).modify_index) == (created, changed)


def test_storing_an_identical_record_writes_nothing() -> None:
    state = AState()
    created = store(state, description="ours")

    assert store(state, description="ours") == created
    assert state.replica.index == created


def test_an_invalid_name_and_a_long_description_are_reported_together() -> None:
    code, text = expect_store_refusal(AState(), "a b", description="x" * 257)

    assert code is RefusalCode.INVALID
    assert text == (
        'Invalid namespace "a b": 2 errors occurred:\n'
        '\t* invalid name "a b". Must match regex ^[a-zA-Z0-9-]{1,128}$\n'
        "\t* description longer than 256"
    )


def test_an_unknown_quota_is_refused() -> None:
    assert 'quota "tight" not found' in expect_store_refusal(AState(), quota="tight")[1]


def test_an_empty_namespace_is_deleted() -> None:
    state = AState()
    store(state)

    delete(state)

    assert state.replica.get(NAMESPACES, "team") is None


def test_the_built_in_namespace_cannot_be_deleted() -> None:
    assert expect_delete_refusal(AState(), "default") == (RefusalCode.INVALID, "can not delete default namespace")


def test_an_unknown_namespace_cannot_be_deleted() -> None:
    assert expect_delete_refusal(AState()) == (RefusalCode.NOT_FOUND, "namespace not found")


def test_a_namespace_with_a_live_job_cannot_be_deleted() -> None:
    state = AState()
    store(state)
    state.register(a_job(namespace="team"))

    assert expect_delete_refusal(state) == (
        RefusalCode.INVALID,
        'namespace "team" has non-terminal jobs in regions: [global]',
    )


def test_a_namespace_with_running_allocations_of_stopped_jobs_cannot_be_deleted() -> None:
    state = AState()
    state.with_node()
    store(state)
    state.register(a_job(namespace="team", stop=True))
    state.with_allocation(state.job(namespace="team"), client_status=ClientStatus.RUNNING)

    assert expect_delete_refusal(state)[1] == 'namespace "team" has non-terminal allocations in regions: [global]'


def test_a_namespace_with_volumes_variables_or_a_quota_cannot_be_deleted_and_all_reasons_are_listed() -> None:
    state = AState()
    state.put(QUOTAS.build_put(Quota(name="tight", create_index=WRITE_INDEX)))
    store(state, quota="tight")
    state.put(
        HOST_VOLUMES.build_put(HostVolume(id="v1", namespace="team", create_index=WRITE_INDEX)),
        VARIABLES.build_put(Variable(namespace="team", path="a", data=b"", key_id="k", create_index=WRITE_INDEX)),
    )

    text = expect_delete_refusal(state)[1]

    assert text == (
        'namespace "team" has volumes in regions: [global]; namespace "team" has variables in regions: [global]; '
        'namespace "team" has the quota "tight" in regions: [global]'
    )


def test_records_of_a_namespace_with_the_same_name_prefix_do_not_count() -> None:
    state = AState()
    store(state)
    store(state, "team-two")
    state.register(a_job(namespace="team-two"))

    delete(state)

    assert state.replica.get(NAMESPACES, "team") is None


def test_a_registration_conflicts_if_its_namespace_is_deleted_meanwhile() -> None:
    state = AState()
    store(state)
    requested = registration.JobRegistration(job=a_job(namespace="team"))
    decided = registration.register_job(state.replica, requested, state.moment, SETTINGS)

    delete(state)

    assert decided.write is not None
    assert isinstance(state.try_commit(decided.write), WriteConflict)
