"""Keys of writes: how long they are remembered, and for what they stand."""

from msgspec.structs import replace

from tests.kit.state import AState
from wharf.model.changes import THIS
from wharf.model.cluster import IdempotencyKey
from wharf.operations import idempotency
from wharf.operations.decision import Decision
from wharf.operations.idempotency import KEPT_NS, Repeatable
from wharf.state.tables import IDEMPOTENCY_KEYS

ASKED = Repeatable("token", "once", "PUT", "/v1/jobs?", b"{}")


def keep(state: AState, asked: Repeatable = ASKED) -> None:
    change, condition = idempotency.remember(state.replica, asked, status=200, answer=None, now_ns=state.now_ns)
    state.commit(idempotency.beside(None, change, condition, cause="r1"))


def test_a_key_is_remembered_for_a_day() -> None:
    state = AState()
    keep(state)

    def known(at_ns: int) -> bool:
        return idempotency.remembered(state.replica, ASKED, now_ns=at_ns) is not None

    assert [known(state.now_ns + passed_ns) for passed_ns in (0, KEPT_NS - 1, KEPT_NS)] == [True, True, False]


def test_only_the_same_scope_has_the_key() -> None:
    state = AState()
    keep(state)

    assert idempotency.remembered(state.replica, replace(ASKED, scope="another"), now_ns=state.now_ns) is None


def test_keys_whose_day_is_over_are_collected_a_part_at_a_time() -> None:
    state = AState()
    for number in range(3):
        keep(state, replace(ASKED, key=f"k{number}"))
    young = IdempotencyKey(
        scope="token", key="young", method="PUT", path="/", body_digest="", status=200,
        expires_at=state.now_ns + 2 * KEPT_NS, create_index=THIS,
    )  # fmt: skip
    state.put(IDEMPOTENCY_KEYS.put(young))
    state.now_ns += KEPT_NS

    first, second = (state.do(decision) for _ in range(2) if (decision := collect(state)) is not None)

    assert (first, second, collect(state)) == (2, 1, None)
    assert [kept.key for kept in state.replica.all(IDEMPOTENCY_KEYS)] == ["young"]


def collect(state: AState) -> Decision[int] | None:
    return idempotency.collect_expired(state.replica, state.moment, most=2)
