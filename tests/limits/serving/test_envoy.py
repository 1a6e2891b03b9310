"""Envoy's rate limit protocol: what each field of a request does, and what the fields of a reply contain."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse  # type: ignore[import-untyped]

from tests.limits.decision_services import AdvancingWorld, make_decision_service
from tests.limits.serving.messages import OK, OVER_LIMIT, Proxy, describe, make_refund, make_request
from wharf.limits.core.descriptors import Descriptor, LimitOverride
from wharf.limits.core.rule import OVERRIDE_RULES
from wharf.limits.decisions import DecisionService
from wharf.limits.serving.envoy import MAX_DESCRIPTORS, MAX_ENTRIES, InvalidRateLimitRequest, read_request
from wharf.limits.serving.messages import RateLimitResponse as OwnResponse

T = TypeVar("T")

RULES = """
[[domain]]
name = "shop"
[[domain.descriptors]]
key = "remote_address"
ceiling = 3
[[domain.descriptors]]
key = "path"
value = "/x"
descriptors = [{ key = "user", ceiling = 2, window = "10s" }]
[[domain.descriptors]]
key = "tokens"
algorithm = "meter"
ceiling = 100
[[domain.descriptors]]
key = "tried"
shadow = true
ceiling = 1
[[domain.descriptors]]
key = "secret"
hidden = true
ceiling = 1
[[domain.descriptors]]
key = "free"
ceiling = "unlimited"
[[domain.descriptors]]
key = "banned"
ceiling = 0
"""


class Setting:
    """A decision service whose time stands still, and a proxy in front of it."""

    def __init__(self, rules: str = RULES) -> None:
        self.world = AdvancingWorld()
        self.service: DecisionService = make_decision_service(rules, world=self.world)
        self.proxy = Proxy(self.service)


def run(scenario: Callable[[Setting], Awaitable[T]]) -> T:
    async def start() -> T:
        return await scenario(Setting())

    return asyncio.run(start())


def get_headers(reply: Any) -> dict[str, str]:
    return {header.key: header.value for header in reply.response_headers_to_add}


def test_an_admitted_request_has_the_state_of_its_limit() -> None:
    async def scenario(setting: Setting) -> Any:
        return await setting.proxy.ask("remote_address=10.0.0.1")

    reply = run(scenario)
    (status,) = reply.statuses
    assert (reply.overall_code, status.code, status.limit_remaining) == (OK, OK, 2)
    assert (status.current_limit.name, status.current_limit.requests_per_unit) == ("shop_remote_address", 3)
    assert status.current_limit.unit == RateLimitResponse.RateLimit.MINUTE
    assert status.duration_until_reset.ToMilliseconds() == 60_000


def test_requests_beyond_the_ceiling_are_refused_until_the_window_ends() -> None:
    async def scenario(setting: Setting) -> list[int]:
        codes = [await setting.proxy.ask_code("remote_address=10.0.0.1") for _ in range(4)]
        setting.world.advance(60)
        return [*codes, await setting.proxy.ask_code("remote_address=10.0.0.1")]

    assert run(scenario) == [OK, OK, OK, OVER_LIMIT, OK]


def test_each_value_is_counted_separately() -> None:
    async def scenario(setting: Setting) -> list[int]:
        addresses = [1, 1, 1, 2, 1]
        return [await setting.proxy.ask_code(f"remote_address=10.0.0.{n}") for n in addresses]

    assert run(scenario) == [OK, OK, OK, OK, OVER_LIMIT]


def test_one_exceeded_limit_refuses_the_request_and_charges_no_other() -> None:
    async def scenario(setting: Setting) -> Any:
        both = ("remote_address=10.0.0.1", "path=/x, user=ada")
        for _ in range(3):
            reply = await setting.proxy.ask(*both)
        return reply

    reply = run(scenario)
    assert reply.overall_code == OVER_LIMIT
    assert [(status.code, status.limit_remaining) for status in reply.statuses] == [(OK, 1), (OVER_LIMIT, 0)]


def test_each_limit_reports_when_its_own_window_ends() -> None:
    async def scenario(setting: Setting) -> Any:
        await setting.proxy.ask("path=/x, user=ada")
        setting.world.advance(4)
        return await setting.proxy.ask("remote_address=10.0.0.1", "path=/x, user=ada")

    ends = [status.duration_until_reset.ToMilliseconds() for status in run(scenario).statuses]
    assert ends == [60_000, 6_000]


def test_headers_show_all_limits_as_those_of_the_gateway_do() -> None:
    async def scenario(setting: Setting) -> Any:
        return await setting.proxy.ask("remote_address=10.0.0.1", "path=/x, user=ada", "free=1", "unknown=1")

    headers = get_headers(run(scenario))
    assert headers["ratelimit-policy"] == '"shop_remote_address";q=3;w=60, "shop_path_x_user";q=2;w=10'
    assert headers["ratelimit"] == '"shop_remote_address";r=2;t=60, "shop_path_x_user";r=1;t=10'


def test_a_refusal_says_how_long_to_wait_and_why() -> None:
    async def scenario(setting: Setting) -> Any:
        for _ in range(3):
            reply = await setting.proxy.ask("path=/x, user=ada")
        return reply

    reply = run(scenario)
    headers, body = get_headers(reply), json.loads(reply.raw_body)
    assert headers["retry-after"] == "10"
    assert body["message"].startswith("Rate limit exceeded. Wait 10 seconds before you try again. Request ID ")
    assert (body["status"], body["limit"]["name"], body["limit"]["resets_in_seconds"]) == (
        "429",
        "shop_path_x_user",
        10,
    )


def test_an_admission_has_no_body() -> None:
    async def scenario(setting: Setting) -> Any:
        return await setting.proxy.ask("remote_address=10.0.0.1")

    assert run(scenario).raw_body == b""


def test_a_refusal_can_be_explained_by_its_id() -> None:
    async def scenario(setting: Setting) -> Any:
        for _ in range(3):
            reply = await setting.proxy.ask("path=/x, user=ada")
        return setting.service.decision_log.find(get_headers(reply)["x-github-request-id"])

    entry = run(scenario)
    assert (entry["path"], entry["caller"]) == ("shop (path=/x, user=ada)", "shop/path:/x,user:ada")
    assert (entry["verdict"], entry["told_by"]) == ("secondary", "shop_path_x_user")


def test_decisions_are_counted_by_rule() -> None:
    async def scenario(setting: Setting) -> tuple[int, int]:
        for _ in range(3):
            await setting.proxy.ask("path=/x, user=ada")
        activity = setting.service.activity
        activity.add_admissions_to_rows(setting.service.now_ms())
        counts = activity.rules["shop_path_x_user"]
        return counts.within, counts.refused

    assert run(scenario) == (2, 1)


def test_the_hits_of_a_request_count_for_all_descriptors_that_set_none() -> None:
    async def scenario(setting: Setting) -> Any:
        return await setting.proxy.ask("remote_address=10.0.0.1", describe("path=/x, user=ada", hits=1), hits=2)

    assert [status.limit_remaining for status in run(scenario).statuses] == [1, 1]


def test_more_hits_than_are_left_are_refused_and_not_counted() -> None:
    async def scenario(setting: Setting) -> list[Any]:
        return [await setting.proxy.ask("remote_address=10.0.0.1", hits=hits) for hits in (2, 2, 1)]

    replies = run(scenario)
    assert [reply.overall_code for reply in replies] == [OK, OVER_LIMIT, OK]
    assert [reply.statuses[0].limit_remaining for reply in replies] == [1, 1, 0]


def test_more_hits_than_the_ceiling_are_refused_without_a_time_to_wait() -> None:
    async def scenario(setting: Setting) -> Any:
        return await setting.proxy.ask("remote_address=10.0.0.1", hits=4)

    reply = run(scenario)
    assert ("retry-after" in get_headers(reply), json.loads(reply.raw_body)["cause"]) == (False, "never")


def test_zero_hits_check_a_limit_without_counting() -> None:
    async def scenario(setting: Setting) -> list[int]:
        check = describe("path=/x, user=ada", hits=0)
        codes = [await setting.proxy.ask_code(check) for _ in range(3)]
        await setting.proxy.ask("path=/x, user=ada", hits=2)
        return [*codes, await setting.proxy.ask_code(check)]

    assert run(scenario) == [OK, OK, OK, OVER_LIMIT]


def test_a_meter_counts_a_cost_that_is_known_only_after_the_request() -> None:
    """As with `apply_on_stream_done` of Envoy: a check before the request, and its cost after it."""

    async def scenario(setting: Setting) -> list[int]:
        codes = []
        for cost in (60, 60, 60):
            codes.append(await setting.proxy.ask_code(describe("tokens=ada", hits=0)))
            await setting.proxy.ask(describe("tokens=ada", hits=cost))
        return codes

    assert run(scenario) == [OK, OK, OVER_LIMIT]


def test_a_meter_counts_the_cost_also_after_it_is_used_up() -> None:
    async def scenario(setting: Setting) -> int:
        for _ in range(3):
            await setting.proxy.ask(describe("tokens=ada", hits=100))
        counters = setting.service.evaluator.local_counters
        assert counters is not None
        return counters.tables["shop_tokens"].count_used("tokens:ada", setting.service.now_ms())

    assert run(scenario) == 300


@pytest.mark.parametrize(("hits", "remaining"), [(1, 2), (2, 3), (9, 3)])
def test_negative_hits_are_taken_back(hits: int, remaining: int) -> None:
    async def scenario(setting: Setting) -> list[int]:
        for _ in range(2):
            await setting.proxy.ask("remote_address=10.0.0.1")
        reply = await setting.proxy.ask(make_refund("remote_address=10.0.0.1", hits=hits))
        check = await setting.proxy.ask(describe("remote_address=10.0.0.1", hits=0))
        return [reply.overall_code, reply.statuses[0].limit_remaining, check.statuses[0].limit_remaining]

    assert run(scenario) == [OK, remaining, remaining]


def test_negative_hits_are_taken_back_from_a_counter_that_is_used_up() -> None:
    async def scenario(setting: Setting) -> list[int]:
        codes = [await setting.proxy.ask_code("path=/x, user=ada") for _ in range(3)]
        codes.append(await setting.proxy.ask_code(make_refund("path=/x, user=ada", hits=1)))
        return [*codes, await setting.proxy.ask_code("path=/x, user=ada")]

    assert run(scenario) == [OK, OK, OVER_LIMIT, OK, OK]


def test_a_shadow_rule_counts_and_refuses_nothing() -> None:
    async def scenario(setting: Setting) -> tuple[list[int], int]:
        codes = [await setting.proxy.ask_code("tried=1") for _ in range(3)]
        return codes, setting.service.activity.rules["shop_tried"].shadowed

    assert run(scenario) == ([OK, OK, OK], 2)


def test_a_hidden_limit_refuses_without_being_named() -> None:
    async def scenario(setting: Setting) -> Any:
        for _ in range(2):
            reply = await setting.proxy.ask("secret=1")
        return reply

    reply = run(scenario)
    (status,) = reply.statuses
    assert (status.code, status.HasField("current_limit"), status.limit_remaining) == (OVER_LIMIT, False, 0)
    assert ("ratelimit" in get_headers(reply), b"shop_secret" in reply.raw_body) == (False, False)


def test_an_unlimited_descriptor_reports_no_limit() -> None:
    async def scenario(setting: Setting) -> Any:
        return await setting.proxy.ask("free=1")

    (status,) = run(scenario).statuses
    assert (status.code, status.HasField("current_limit"), status.limit_remaining) == (OK, False, 2**32 - 1)


def test_a_ceiling_of_zero_refuses_everything() -> None:
    async def scenario(setting: Setting) -> int:
        return await setting.proxy.ask_code("banned=1")

    assert run(scenario) == OVER_LIMIT


@pytest.mark.parametrize(("domain", "text"), [("other", "remote_address=10.0.0.1"), ("shop", "unknown=1")])
def test_unknown_domains_and_descriptors_are_admitted(domain: str, text: str) -> None:
    async def scenario(setting: Setting) -> Any:
        return await setting.proxy.ask(text, domain=domain)

    reply = run(scenario)
    (status,) = reply.statuses
    assert (reply.overall_code, status.code, status.HasField("current_limit")) == (OK, OK, False)
    assert list(reply.response_headers_to_add) == []


def test_a_limit_that_the_proxy_sends_replaces_the_rule() -> None:
    async def scenario(setting: Setting) -> Any:
        return await setting.proxy.ask(describe("remote_address=10.0.0.1", limit=(10, "HOUR")))

    (status,) = run(scenario).statuses
    assert (status.current_limit.requests_per_unit, status.limit_remaining) == (10, 9)
    assert status.current_limit.unit == RateLimitResponse.RateLimit.HOUR


@pytest.mark.parametrize("unit", ["SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR"])
def test_each_unit_of_a_limit_is_read_and_reported(unit: str) -> None:
    _, (descriptor,) = read_request(make_request(describe("a=b", limit=(7, unit))).SerializeToString())
    assert descriptor.override is not None
    assert OVERRIDE_RULES[descriptor.override.unit_index].name == f"override_{unit.lower()}"


def test_a_request_is_read_completely() -> None:
    message = make_request("a=b, c=d", describe("e=f", hits=0, limit=(7, "SECOND")), hits=3).SerializeToString()
    assert read_request(message) == (
        "shop",
        [
            Descriptor((("a", "b"), ("c", "d")), 3),
            Descriptor((("e", "f"),), 0, LimitOverride(7, unit_index=0)),
        ],
    )


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"\xff", "the message is not a RateLimitRequest"),
        (make_request("a=b", domain="").SerializeToString(), "the domain is empty"),
        (make_request().SerializeToString(), "the request has no descriptors"),
        (RateLimitRequest(domain="d", descriptors=[{}]).SerializeToString(), "a descriptor has no entries"),
        (make_request("=b").SerializeToString(), "an entry of a descriptor has an empty key"),
        (make_request(*["a=b"] * (MAX_DESCRIPTORS + 1)).SerializeToString(), "the request has 65 descriptors"),
        (make_request(", ".join(["a=b"] * (MAX_ENTRIES + 1))).SerializeToString(), "a descriptor has 33 entries"),
        (make_request(describe("a=b", limit=(1, "UNKNOWN"))).SerializeToString(), "the unit 0 of a limit is unknown"),
    ],
)
def test_a_request_that_cannot_be_decided_is_an_error(message: bytes, problem: str) -> None:
    with pytest.raises(InvalidRateLimitRequest, match=problem):
        read_request(message)


def test_new_rules_apply_to_requests_that_were_sent_before() -> None:
    async def scenario(setting: Setting) -> list[int]:
        codes = [await setting.proxy.ask_code("remote_address=10.0.0.1")]
        await setting.service.set_rules(RULES.replace("ceiling = 3", "ceiling = 1"), "rules.toml")
        codes.append(await setting.proxy.ask_code("remote_address=10.0.0.1"))
        await setting.service.set_rules("", "rules.toml")
        return [*codes, await setting.proxy.ask_code("remote_address=10.0.0.1")]

    assert run(scenario) == [OK, OVER_LIMIT, OK]


def test_while_limits_are_disabled_everything_is_admitted() -> None:
    async def scenario(setting: Setting) -> list[int]:
        await setting.service.overrides.set_off_until(setting.service.now_ms() + 60_000)
        return [await setting.proxy.ask_code("banned=1")]

    assert run(scenario) == [OK]


def test_many_values_share_one_counter_when_the_table_is_full() -> None:
    async def scenario(_: Setting) -> list[int]:
        setting = Setting("keys_most = 2\n" + RULES)
        return [await setting.proxy.ask_code(f"path=/x, user=u{n}") for n in range(6)]

    assert run(scenario) == [OK, OK, OK, OK, OVER_LIMIT, OVER_LIMIT]


def test_nothing_about_an_answered_request_stays_in_memory() -> None:
    async def scenario(setting: Setting) -> tuple[int, bool]:
        reply = await setting.proxy.ask("remote_address=10.0.0.1")
        counters = setting.service.evaluator.local_counters
        assert counters is not None
        request_id = get_headers(reply)["x-github-request-id"]
        return len(setting.service.running_requests), counters.is_running(request_id)

    assert run(scenario) == (0, False)


def test_our_reply_message_has_the_fields_of_the_published_one() -> None:
    own = OwnResponse.DESCRIPTOR
    published = RateLimitResponse.DESCRIPTOR
    numbers = {field.name: field.number for field in published.fields}
    assert {field.name: field.number for field in own.fields}.items() <= numbers.items()
