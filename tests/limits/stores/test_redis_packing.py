"""What is sent to the Redis script for a call, under which keys, and how the replies of several nodes are merged."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.limits.builders import NOON_MS, a_user
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.plans import Charge
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.route import OTHER_NAME
from wharf.limits.core.rule import BanRules
from wharf.limits.core.store_calls import StoreCall
from wharf.limits.rules import read_rules
from wharf.limits.stores.redis import packing as packing_module
from wharf.limits.stores.redis.packing import CallEncoder, decode_result, merge_results

RULES = read_rules("""
profile = "none"
[[rule]]
name = "core"
resource = "core"
window = "10s"
ceiling = 20
[[rule]]
name = "by_address"
scope = ["address"]
counts = "points"
window = "10s"
ceiling = 30
[[rule]]
name = "by_path"
per_endpoint = true
counts = "points"
window = "9s"
ceiling = 40
keys_most = 5
[[rule]]
name = "cpu"
counts = "cpu_ms"
window = "10s"
ceiling = 50
[[rule]]
name = "slots"
counts = "connections"
ceiling = 9
[[rule]]
name = "slots_by_path"
per_endpoint = true
counts = "connections"
ceiling = 9
keys_most = 5
[[endpoint]]
match = ["GET /free"]
free = true
""")
ADDRESS = "address:192.0.2.7"


def make_call(path: str = "/x") -> StoreCall:
    return Limiter(RULES).build_call(RequestFacts("r1", "GET", path, a_user()), NOON_MS)


def get_charge(rule: str) -> Charge:
    (charge,) = [charge for charge in make_call().charges if charge.name == rule]
    return charge


def make_encoder(*, is_cluster: bool = False) -> CallEncoder:
    return CallEncoder("p:", is_cluster=is_cluster)


def decode(raw: msgspec.Raw) -> Any:
    return msgspec.msgpack.decode(bytes(raw))


# -- keys ----------------------------------------------------------------------------------------------------------


def test_all_keys_of_an_owner_have_its_hash_tag() -> None:
    encoder = make_encoder()

    assert (encoder.build_result_key("o", "r"), encoder.build_refund_mark_key("o", "r")) == ("p:{o}?r", "p:{o}<r")
    assert (encoder.build_ban_key("s"), encoder.build_rules_key(), encoder.build_overrides_key()) == (
        "p:{s}!",
        "p:{rules}",
        "p:{operators}",
    )


@pytest.mark.parametrize(
    ("rule", "key", "field"),
    [
        ("core", "p:{user:ada}", "core"),
        ("by_address", "p:{address:192.0.2.7}", "by_address"),
        ("by_path", "p:{user:ada}/by_path", "{path}"),
        ("slots", "p:{user:ada}#slots ", ""),
        ("slots_by_path", "p:{user:ada}#slots_by_path {path}", ""),
    ],
)
def test_a_counter_is_a_field_of_its_owner_and_a_lease_table_has_a_key(rule: str, key: str, field: str) -> None:
    charge = get_charge(rule)
    path = charge.key.partition(" ")[2]
    assert bool(path) is ("path" in rule)

    found = make_encoder().build_counter_key(charge.rule, charge.key, charge.owner)

    assert found == (key.replace("{path}", path), field.replace("{path}", path))


def test_the_lease_keys_of_a_call_are_those_of_its_slots() -> None:
    call = make_call()
    path = get_charge("slots_by_path").key.partition(" ")[2]

    assert make_encoder().list_lease_keys(call) == ["p:{user:ada}#slots ", f"p:{{user:ada}}#slots_by_path {path}"]


# -- charges -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "code", "cost", "required", "most_keys"),
    [
        ("core", "W", 1, 1, 0),
        ("by_path", "S", 1, 1, 5),
        ("cpu", "M", 0, 1, 0),
        ("slots", "L", 1, 1, 0),
        ("slots_by_path", "L", 1, 1, 0),
    ],
)
def test_a_charge_is_sent_with_the_values_of_its_rule(
    rule: str, code: str, cost: int, required: int, most_keys: int
) -> None:
    charge = get_charge(rule)
    sent = make_encoder().encode_charge(charge)

    assert (sent[0], sent[3]) == (code, charge.rule.window_ms)
    assert sent[6:10] == [charge.ceiling, cost, required, True]
    assert sent[10:] == [most_keys, OTHER_NAME if most_keys else "", ""]


@pytest.mark.parametrize(
    ("rule", "slices", "width_ms", "retention_ms"),
    [
        ("by_address", 12, 834, 13 * 834),
        ("by_address", 10, 1_000, 11_000),
        ("by_address", 1, 10_000, 20_000),
        ("cpu", 10, 1_000, 10_000),
        ("cpu", 12, 834, 12 * 834),
    ],
)
def test_slices_are_rounded_up_and_retained_one_slice_longer_than_meters(
    rule: str, slices: int, width_ms: int, retention_ms: int
) -> None:
    charge = get_charge(rule)
    sent = make_encoder().encode_charge(replace(charge, rule=replace(charge.rule, slices=slices)))

    assert sent[4:6] == [width_ms, retention_ms]


@pytest.mark.parametrize(
    ("rule", "was", "sent_name"), [("core", "old", "old"), ("core", None, ""), ("by_path", "old", "")]
)
def test_the_former_name_of_a_rule_is_sent_unless_it_has_several_counters_per_owner(
    rule: str, was: str | None, sent_name: str
) -> None:
    charge = get_charge(rule)

    assert make_encoder().encode_charge(replace(charge, rule=replace(charge.rule, was=was)))[12] == sent_name


@pytest.mark.parametrize(("keys_most", "sent"), [(5, [5, OTHER_NAME]), (0, [0, ""])])
def test_a_rule_without_a_maximum_of_counters_sends_none(keys_most: int, sent: list[Any]) -> None:
    charge = get_charge("by_path")

    encoded = make_encoder().encode_charge(replace(charge, rule=replace(charge.rule, keys_most=keys_most)))
    assert encoded[10:12] == sent


def test_ban_rules_are_sent_in_the_order_of_the_script() -> None:
    ban = BanRules(refusals_least=1, percent=2, minutes=3, grace_ms=4, first_ms=5, most_ms=6, forget_ms=7)

    assert CallEncoder.encode_ban_rules(ban) == [1, 2, 3, 4, 5, 6, 7]


# -- parts of a call -----------------------------------------------------------------------------------------------


def test_a_call_for_one_server_has_one_part_with_all_charges() -> None:
    encoder, call = make_encoder(), make_call()
    (part,) = encoder.split_call(call)
    charges, ban_key, is_ban_enforced, ban_rules, bucket, charges_bucket = decode(part.plan)

    assert (part.owner, part.indexes, part.has_bucket) == ("user:ada", (0, 1, 2, 3, 4, 5), True)
    assert charges == decode(part.charges) == encoder.encode_charges(call.charges)
    assert (ban_key, is_ban_enforced, ban_rules) == ("p:{token:t1}!", True, CallEncoder.encode_ban_rules(RULES.ban))
    assert (bucket, charges_bucket) == (1, True)


def test_a_call_for_a_cluster_has_a_part_for_each_owner() -> None:
    encoder, call = make_encoder(is_cluster=True), make_call()
    first, second = encoder.split_call(call)

    assert (first.owner, first.indexes, first.has_bucket) == ("user:ada", (0, 2, 3, 4, 5), True)
    assert (second.owner, second.indexes, second.has_bucket) == (ADDRESS, (1,), False)
    assert [decode(part.plan)[1] for part in (first, second)] == ["", ""]  # Bans are read on their own.
    assert [decode(part.plan)[4] for part in (first, second)] == [1, 0]
    assert decode(second.charges) == [encoder.encode_charge(call.charges[1])]


@pytest.mark.parametrize("is_cluster", [False, True])
def test_the_bucket_of_a_free_request_is_sent_as_a_charge(is_cluster: bool) -> None:
    encoder, call = make_encoder(is_cluster=is_cluster), make_call("/free")
    parts = encoder.split_call(call)
    (part,) = [part for part in parts if part.has_bucket]

    assert [charge.name for charge in call.charges][:2] == ["by_address", "by_path"]
    assert (part.owner, decode(part.plan)[4], decode(part.plan)[5]) == (
        "user:ada",
        encoder.encode_charge(call.plan.bucket_charge),
        False,
    )


def test_the_owner_of_the_bucket_has_a_part_even_without_charges() -> None:
    encoder, call = make_encoder(is_cluster=True), make_call("/free")
    call = replace(call, charges=call.charges[:1])
    parts = {part.owner: part for part in encoder.split_call(call)}

    assert {owner: (part.indexes, part.has_bucket) for owner, part in parts.items()} == {
        ADDRESS: ((0,), False),
        "user:ada": ((), True),
    }


@pytest.mark.parametrize("is_shadow", [True, False])
def test_a_ban_in_shadow_mode_is_not_enforced(is_shadow: bool) -> None:
    call = make_call()
    plan = msgspec.structs.replace(call.plan, is_ban_shadow=is_shadow)
    (part,) = make_encoder().split_call(replace(call, plan=plan, charges=plan.charges))

    assert decode(part.plan)[2] is not is_shadow


def test_parts_are_cached_by_plan_until_the_cache_is_full_or_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing_module, "MAX_CACHED_PLANS", 2)
    encoder = make_encoder()
    calls = [make_call() for _ in range(3)]
    first = encoder.split_call(calls[0])
    assert encoder.split_call(calls[0]) is first
    second = encoder.split_call(calls[1])
    assert (encoder.split_call(calls[0]) is first, encoder.split_call(calls[1]) is second) == (True, True)
    encoder.split_call(calls[2])  # The full cache is cleared first.
    assert encoder.split_call(calls[0]) is not first

    last = encoder.split_call(calls[2])
    encoder.clear_cache()
    assert encoder.split_call(calls[2]) is not last


def test_a_call_with_a_grant_is_sent_with_its_own_ceilings() -> None:
    encoder, call = make_encoder(), make_call()
    (cached,) = encoder.split_call(call)
    raised = replace(call, charges=tuple(replace(charge, ceiling=99) for charge in call.charges))
    (part,) = encoder.split_call(raised)

    assert {charge[6] for charge in decode(part.charges)} == {99}
    assert encoder.split_call(call) == (cached,)


# -- results -------------------------------------------------------------------------------------------------------


def test_the_reply_of_one_server_is_the_result() -> None:
    call = make_call()
    value = [False, 1, [2, 3], [4], [5], [], 6, 7, 8]
    result = decode_result(call, value, is_repeated=True)

    assert msgspec.structs.astuple(result) == (False, 1, (2, 3), (4,), (5,), (), 6, 7, 8, True, 0)


def test_a_counter_under_the_shared_key_has_this_key_in_the_result() -> None:
    call = make_call()
    result = decode_result(call, [True, 1, [0] * 6, [], [], [2], 0, 0, 0], is_repeated=False)

    shared = f"user:ada {OTHER_NAME}"
    assert result.keys == tuple(shared if index == 2 else charge.key for index, charge in enumerate(call.charges))


def merge(first: list[Any], second: list[Any]) -> tuple[Any, ...]:
    call = make_call()
    parts = make_encoder(is_cluster=True).split_call(call)
    return msgspec.structs.astuple(merge_results(call, list(zip(parts, (first, second), strict=True))))


def test_the_replies_of_two_nodes_are_merged_in_the_order_of_the_call() -> None:
    keys = tuple(f"user:ada {OTHER_NAME}" if charge.name == "by_path" else charge.key for charge in make_call().charges)

    assert merge(
        [True, 10, [20, 22, 23, 24, 25], [0, 4], [50, 55], [1], 30, 40, 0],
        [True, 11, [21], [0], [51], [], 98, 99, 3],
    ) == (True, 11, (20, 21, 22, 23, 24, 25), (0, 1, 5), (50, 51, 55), keys, 30, 40, 3, False, 0)


@pytest.mark.parametrize(
    ("first", "second", "is_admitted"),
    [(True, True, True), (True, False, False), (False, True, False), (False, False, False)],
)
def test_a_call_is_admitted_if_all_its_parts_are(first: bool, second: bool, is_admitted: bool) -> None:
    result = merge([first, 11, [20, 22, 23, 24, 25], [], [], [], 30, 40, 5], [second, 10, [21], [], [], [], 98, 99, 3])

    assert (result[0], result[1], result[5], result[8]) == (is_admitted, 11, (), 5)
