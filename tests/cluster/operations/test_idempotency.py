"""Idempotency keys: how long they are stored, and which request they belong to."""

import pytest
from msgspec.structs import replace

from tests.kit.state import AState, Refused
from wharf.cluster.operations import idempotency
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.idempotency import KEY_RETENTION_NS, IdempotentRequest
from wharf.cluster.state.tables import IDEMPOTENCY_KEYS
from wharf.contract.model.cluster import IdempotencyKey
from wharf.contract.model.log import WRITE_INDEX

REQUEST = IdempotentRequest("token", "once", "PUT", "/v1/jobs?", b"{}")


def store_key(state: AState, requested: IdempotentRequest = REQUEST) -> None:
    change, condition = idempotency.record_response(
        state.replica, requested, status=200, response=None, now_ns=state.now_ns
    )
    state.commit(idempotency.attach_response_record(None, change, condition, cause="r1"))


def test_a_key_is_stored_for_a_day() -> None:
    state = AState()
    store_key(state)

    def is_stored(at_ns: int) -> bool:
        return idempotency.find_recorded_response(state.replica, REQUEST, now_ns=at_ns) is not None

    assert [is_stored(state.now_ns + passed_ns) for passed_ns in (0, KEY_RETENTION_NS - 1, KEY_RETENTION_NS)] == [
        True,
        True,
        False,
    ]


def test_a_key_belongs_to_one_scope() -> None:
    state = AState()
    store_key(state)

    assert (
        idempotency.find_recorded_response(state.replica, replace(REQUEST, scope="another"), now_ns=state.now_ns)
        is None
    )


def test_expired_keys_are_collected_in_parts() -> None:
    state = AState()
    for number in range(3):
        store_key(state, replace(REQUEST, key=f"k{number}"))
    young = IdempotencyKey(
        scope="token", key="young", method="PUT", path="/", body_digest="", status=200,
        expires_at=state.now_ns + 2 * KEY_RETENTION_NS, create_index=WRITE_INDEX,
    )  # fmt: skip
    state.put(IDEMPOTENCY_KEYS.build_put(young))
    state.now_ns += KEY_RETENTION_NS

    first, second = (state.do(decision) for _ in range(2) if (decision := collect(state)) is not None)

    assert (first, second, collect(state)) == (2, 1, None)
    assert [stored.key for stored in state.replica.iter_all(IDEMPOTENCY_KEYS)] == ["young"]


def collect(state: AState) -> Decision[int] | None:
    return idempotency.collect_expired_keys(state.replica, state.moment, max_keys=2)


def test_the_record_of_a_refused_request_is_deleted_unless_it_changed_meanwhile() -> None:
    state = AState()
    store_key(state)
    decisions = [idempotency.delete_claim(state.replica, REQUEST, cause="r2") for _ in range(2)]
    state.commit(decisions[0])

    with pytest.raises(Refused):
        state.commit(decisions[1])
    assert (decisions[0].cause.id, state.replica.count_records(IDEMPOTENCY_KEYS)) == ("r2", 0)
