"""Idempotency keys: how long they are stored, and which request they belong to."""

import pytest
from msgspec.structs import replace

from tests.kit.state import AState, Refused
from wharf.cluster.operations import idempotency
from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.idempotency import KEY_RETENTION_NS, IdempotentRequest
from wharf.cluster.state.tables import IDEMPOTENCY_KEYS, LARGE_SEALED_REPLY_BYTES
from wharf.contract.model.cluster import IdempotencyKey
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, PutRecord, Write
from wharf.contract.model.secrets import SealedData

CAUSE = Cause(CauseKind.REQUEST, "test")
REQUEST = IdempotentRequest("token", "once", "PUT", "/v1/jobs?", "digest of the body")


def store_key(state: AState, requested: IdempotentRequest = REQUEST, *, response: SealedData | None = None) -> None:
    record = idempotency.record_response(state.replica, requested, status=200, response=response, now_ns=state.now_ns)
    state.commit(idempotency.attach_response_record(None, *record, cause="r1"))


def list_keys(state: AState, scope: str = REQUEST.scope) -> list[str]:
    return [stored.key for stored in state.replica.iter_all(IDEMPOTENCY_KEYS) if stored.scope == scope]


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


LARGE_RESPONSE = SealedData(b"x" * (LARGE_SEALED_REPLY_BYTES + 1), "key")


def limit_keys(monkeypatch: pytest.MonkeyPatch, *, per_caller: int, total: int = 1_000, least: int = 1) -> None:
    monkeypatch.setattr(idempotency, "MAX_KEYS_PER_CALLER", (per_caller, per_caller))
    monkeypatch.setattr(idempotency, "MAX_KEYS", (total, total))
    monkeypatch.setattr(idempotency, "MIN_KEYS_PER_CALLER", (least, least))


def test_a_new_key_replaces_the_oldest_one_of_a_caller_that_has_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_keys(monkeypatch, per_caller=3)
    state = AState()
    store_key(state, replace(REQUEST, scope="another"))

    for number in range(5):
        store_key(state, replace(REQUEST, key=f"k{number}"))

    assert (list_keys(state), list_keys(state, "another")) == (["k2", "k3", "k4"], ["once"])


def test_a_repeated_request_replaces_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_keys(monkeypatch, per_caller=1)
    state = AState()

    store_key(state)
    store_key(state)

    assert list_keys(state) == ["once"]


def test_large_responses_count_apart_from_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_keys(monkeypatch, per_caller=2)
    state = AState()

    for number in range(3):
        store_key(state, replace(REQUEST, key=f"small{number}"))
        store_key(state, replace(REQUEST, key=f"large{number}"), response=LARGE_RESPONSE)

    assert list_keys(state) == ["small1", "large1", "small2", "large2"]


def test_callers_share_the_keys_of_all_equally(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_keys(monkeypatch, per_caller=10, total=8)
    state = AState()
    for number in range(8):
        store_key(state, replace(REQUEST, key=f"k{number}"))
    store_key(state, replace(REQUEST, scope="another"))

    for number in range(8, 12):
        store_key(state, replace(REQUEST, key=f"k{number}"))

    assert (list_keys(state), list_keys(state, "another")) == (["k8", "k9", "k10", "k11"], ["once"])


def test_many_callers_leave_a_share_to_each(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_keys(monkeypatch, per_caller=10, total=4, least=2)
    state = AState()
    for number in range(8):
        store_key(state, replace(REQUEST, scope=f"caller{number}"))

    store_key(state, replace(REQUEST, scope="caller0", key="second"))

    assert list_keys(state, "caller0") == ["once", "second"]


def test_all_callers_without_a_token_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_keys(monkeypatch, per_caller=2)
    state = AState()

    for number in range(3):
        store_key(state, replace(REQUEST, scope=f"anonymous {number}"))

    assert [stored.scope for stored in state.replica.iter_all(IDEMPOTENCY_KEYS)] == ["anonymous 1", "anonymous 2"]


def test_a_large_write_replaces_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_keys(monkeypatch, per_caller=1)
    state = AState()
    store_key(state)
    record = idempotency.record_response(
        state.replica, replace(REQUEST, key="second"), status=200, response=None, now_ns=state.now_ns
    )
    changes: list[PutRecord] = [
        IDEMPOTENCY_KEYS.build_put(
            IdempotencyKey(scope="a", key=str(number), method="PUT", path="/", body_digest="", status=200)
        )
        for number in range(100)
    ]

    write = idempotency.attach_response_record(Write("large", CAUSE, changes), *record, cause="r")

    assert len(write.changes) == 101


def test_expired_keys_are_found_among_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "EXPIRY_SCAN", 2)
    state = AState()
    for number in range(3):
        store_key(state, replace(REQUEST, key=f"{9 - number}"))
    state.now_ns += KEY_RETENTION_NS

    found = idempotency.collect_expired_keys(state.replica, state.moment, max_keys=2)

    assert found is not None
    assert state.do(found) == 2
    assert list_keys(state) == ["7"]
