"""The rate limits of the API, as the API itself shows and changes them."""

from pathlib import Path

import msgspec
import pytest

from tests.cluster.api.access import ApiCaller, an_operator
from tests.cluster.api.limited_server import ADDRESS, RULES, LimitedServer
from tests.cluster.api.test_app import FakeAudit
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from wharf.agent.http.limiter_adapter import find_limited_callers
from wharf.contract.client.errors import InvalidRequest, NotFound
from wharf.contract.model.secrets import hash_secret
from wharf.contract.model.times import SECOND
from wharf.contract.wire.limits import LimitBanRequest, LimitGrantRequest, LimitRefusal

CHECKED = ("limits.read", "limits.grant", "job.scale")


@in_virtual_time
async def test_the_status_names_who_is_limited_by_which_rule_and_until_when(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        limited = LimitedServer(server, tmp_path)
        assert await limited.send(times=5) == [True, True, True, False, False]

        status = await server.client.limits.read()

        (caller,) = status.limited
        core = next(rule for rule in status.rules if rule.name == "core")
        assert (caller.caller, caller.rule, caller.refused) == (ADDRESS, "core", 2)
        assert 0 < caller.until - server.world.now_ns() <= 60 * SECOND
        assert (core.refused, core.ceilings["none"]) == (2, 3)
        assert [(each.path, each.rule, each.ceiling) for each in status.refusals] == [("/v1/jobs", "core", 3)] * 2
        assert [(each.caller, each.requests, each.refused) for each in status.callers] == [(ADDRESS, 5, 2)]
        assert (await server.client.limits.read(limit=0)).callers == ()


@in_virtual_time
async def test_a_grant_admits_more_and_a_ban_is_listed_with_its_reason_until_they_end(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        limited, limits = LimitedServer(server, tmp_path), server.client.limits
        await limited.send(times=3)

        granted = await limits.grant(
            LimitGrantRequest(caller=ADDRESS, amount=2, duration="1h", reason="a demonstration")
        )
        assert await limited.send(times=3) == [True, True, False]
        assert (granted.caller, granted.bucket, granted.by) == (ADDRESS, "core", "anonymous")
        assert (await limits.read_caller(ADDRESS)).grants == (await limits.read()).grants == (granted,)
        assert [each.amount for each in await limits.end_grants(ADDRESS)] == [2]

        banned = await limits.ban(
            LimitBanRequest(subject="address:192.0.2.9", duration="1h", reason="a flood", message="call us")
        )
        assert (await limits.read()).bans == (banned,)
        await limits.end_ban("address:192.0.2.9")

        ended = await limits.read()
        assert (ended.grants, ended.bans) == ((), ())


@in_virtual_time
async def test_the_cost_of_a_request_is_shown_without_charging_it(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        limited, limits = LimitedServer(server, tmp_path), server.client.limits
        await limited.send(times=2)

        costs = [await limits.estimate(ADDRESS, "/v1/jobs?prefix=a") for _ in range(3)]
        await limited.send()
        refused = await limits.estimate(ADDRESS, "/v1/jobs", method="PUT")

        assert {each.is_admitted for each in costs} == {True}
        assert next((each.rule, each.cost, each.used) for each in costs[-1].charges) == ("core", 1, 2)
        assert (refused.is_admitted, refused.rule) == (False, "core")


@in_virtual_time
async def test_wrong_grants_and_bans_are_refused_with_what_to_do(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        LimitedServer(server, tmp_path)
        limits = server.client.limits
        right = LimitGrantRequest(caller=ADDRESS, amount=1, duration="1h", reason="r")

        for change, text in (
            ({"reason": " "}, "Reason: say why"),
            ({"reason": "a\nb"}, "Reason: write one line"),
            ({"duration": "soon"}, "Duration: "),
            ({"duration": "9000h"}, "Duration: expected a duration from 1s to 8784h"),
            ({"caller": ""}, "Caller: name a caller"),
            ({"bucket": "rest"}, "is not a resource of the rules: use one of core"),
            ({"amount": 0}, "the amount must be 1 or more"),
        ):
            with pytest.raises(InvalidRequest, match=text):
                await limits.grant(msgspec.structs.replace(right, **change))
        with pytest.raises(InvalidRequest, match="cannot be banned: only user:"):
            await limits.ban(LimitBanRequest(subject="repository:a/b", duration="1h", reason="r"))
        with pytest.raises(NotFound, match="has no such grant"):
            await limits.end_grants(ADDRESS)
        with pytest.raises(InvalidRequest, match="minutes: expected a number from 1 to 1440, got 0"):
            await limits.read(minutes=0)
        assert (await limits.read()).grants == ()


@in_virtual_time
async def test_a_server_without_limits_says_so() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert not (await server.client.limits.read()).is_enabled
        with pytest.raises(InvalidRequest, match="rate limits are off on this server"):
            await server.client.limits.read_caller(ADDRESS)


@in_virtual_time
async def test_only_operators_see_limits_and_only_those_with_write_change_them(tmp_path: Path) -> None:
    grant = {"Caller": ADDRESS, "Amount": 1, "Duration": "1h", "Reason": "r"}
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        LimitedServer(operator.server, tmp_path)
        replies = {}
        for level in ("read", "write"):
            await operator.policy(level, f'operator {{ policy = "{level}" }}')
            caller = await operator.a_token(level)
            _, checked = await caller.get("/v1/acl/check", "&".join(f"endpoint={name}" for name in CHECKED))
            (read, _), (changed, reply) = await caller.get("/v1/limits"), await caller.put("/v1/limits/grants", grant)
            replies[level] = (checked["Allowed"], read, changed)
        unknown = await operator.get("/v1/acl/check", "endpoint=job.fly")

        assert replies == {
            "read": (["limits.read"], 200, 403),
            "write": (["limits.read", "limits.grant"], 200, 200),
        }
        assert reply["By"] == f"test ({caller.accessor})"
        assert (await ApiCaller(operator.server).get("/v1/limits"))[0] == 403
        assert unknown[0] == 400
        assert 'no endpoint has the name "job.fly"' in unknown[1]


@in_virtual_time
async def test_the_names_of_tokens_are_shown_to_those_who_may_read_all_tokens(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        LimitedServer(operator.server, tmp_path)
        await operator.policy("operators", 'operator { policy = "write" }')
        other = await operator.a_token("operators")
        ban = {"Subject": f"user:{other.accessor}", "Duration": "1h", "Reason": "r"}
        await operator.put("/v1/limits/bans", ban)

        names = [(await caller.get("/v1/limits"))[1]["Bans"][0]["TokenName"] for caller in (operator, other)]

        assert names == ["test", ""]


@in_virtual_time
async def test_changes_of_limits_are_audited_by_the_api_and_by_the_limiter_and_reads_are_not(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        LimitedServer(server, tmp_path)
        audit = FakeAudit()
        server.exchange.api = server.build_api(audit=audit)
        limits = server.client.limits

        await limits.read()
        await limits.ban(LimitBanRequest(subject="address:192.0.2.9", duration="1h", reason="a flood"))
        await limits.end_ban("address:192.0.2.9", reason="a mistake")

        assert [(each.endpoint, each.status) for each in audit.written] == [
            ("limits.ban", 200),
            ("limits.end_ban", 200),
        ]
        records = [msgspec.json.decode(line) for line in (tmp_path / "audit.jsonl").read_bytes().splitlines()]
        assert ["a flood" in str(each) for each in records] == [True, False]


def test_callers_whose_wait_is_over_are_not_limited_and_the_longest_wait_is_first() -> None:
    def refusal(caller: str, rule: str, until: int, verdict: str = "primary") -> LimitRefusal:
        return LimitRefusal(request_id="r", at=until - 5, caller=caller, rule=rule, until=until, verdict=verdict)

    found = find_limited_callers(
        [refusal("a", "core", 20), refusal("a", "core", 30), refusal("b", "core", 9), refusal("b", "", 50, "banned")],
        10,
    )

    assert [(each.caller, each.rule, each.until, each.refused, each.is_banned) for each in found] == [
        ("b", "", 50, 1, True),
        ("a", "core", 30, 2, False),
    ]


def test_a_ban_that_an_operator_has_ended_limits_nobody() -> None:
    refused = LimitRefusal(request_id="r", at=5, caller="b", until=50, verdict="banned")

    assert [each.caller for each in find_limited_callers([refused], 10)] == ["b"]
    assert find_limited_callers([refused], 10, {"b"}) == ()


@in_virtual_time
async def test_a_caller_is_not_limited_after_its_ban_has_ended(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        limited, limits = (
            LimitedServer(server, tmp_path, rules=f"{RULES}\n[ban]\naddresses_shadow = false\n"),
            server.client.limits,
        )
        await limits.ban(LimitBanRequest(subject=ADDRESS, duration="1h", reason="a flood"))
        await limited.send()
        during = (await limits.read()).limited

        await limits.end_ban(ADDRESS)

        assert [(each.caller, each.is_banned) for each in during] == [(ADDRESS, True)]
        assert (await limits.read()).limited == ()


@pytest.mark.parametrize(
    ("new", "expected"),
    [("2", [ADDRESS]), ("2_000", [])],
    ids=["the rules are read again", "the ceiling is raised"],
)
@in_virtual_time
async def test_a_caller_is_limited_until_the_rule_changes(tmp_path: Path, new: str, expected: list[str]) -> None:
    rules = 'profile = "cluster"\n[[rule]]\nname = "core"\nceiling = {{ credential = 8, none = {} }}\n'
    async with ACluster() as cluster:
        server = await cluster.a_server()
        limited = LimitedServer(server, tmp_path, rules=rules.format(2))
        admitted = await limited.send(times=3)
        during = (await server.client.limits.read()).limited

        await limited.limiter.decision_service.set_rules(rules.format(new), "rules.toml")

        assert (admitted, [each.caller for each in during]) == ([True, True, False], [ADDRESS])
        assert [each.caller for each in (await server.client.limits.read()).limited] == expected


@in_virtual_time
async def test_a_token_is_named_by_its_name_or_its_accessor_id_and_unknown_names_are_refused(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        LimitedServer(operator.server, tmp_path)
        exporter = await operator.a_token(Name="nightly-exporter", Policies=["p"])
        others = [await operator.a_token(Name="twice", Policies=["p"]) for _ in range(2)]
        user = f"user:{exporter.accessor}"
        grant = {"Amount": 1, "Duration": "1h", "Reason": "r"}

        granted = [
            (await operator.put("/v1/limits/grants", {"Caller": name, **grant}))[1]["Caller"]
            for name in ("nightly-exporter", "user:nightly-exporter", exporter.accessor, exporter.accessor[:8])
        ]
        unknown = [
            await operator.put("/v1/limits/grants", {"Caller": "nobody", **grant}),
            await operator.put("/v1/limits/bans", {"Subject": "user:nobody", "Duration": "1h", "Reason": "r"}),
            await operator.get("/v1/limits/caller/nobody"),
            await operator.get("/v1/limits/cost", "caller=nobody&path=/v1/jobs"),
        ]
        ambiguous = await operator.put("/v1/limits/grants", {"Caller": "twice", **grant})

        assert granted == [user] * 4
        assert [status for status, _ in unknown] == [404] * 4
        assert all('no token has the name or the accessor ID "nobody"' in text for _, text in unknown)
        assert ambiguous[0] == 400
        assert all(each.accessor in ambiguous[1] for each in others)


@in_virtual_time
async def test_operators_who_may_not_read_tokens_do_not_find_them_by_name(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        LimitedServer(operator.server, tmp_path)
        await operator.policy("reader", 'operator { policy = "read" }')
        reader = await operator.a_token("reader", Name="nightly-exporter")

        status, text = await reader.get("/v1/limits/caller/nightly-exporter")
        assert status == 404
        assert "only management tokens may use the names of tokens" in text
        assert "no token has the name" not in text
        assert (await reader.get(f"/v1/limits/caller/{reader.accessor}"))[1]["Caller"] == f"user:{reader.accessor}"


@in_virtual_time
async def test_a_token_reads_its_own_limits_without_a_right(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        LimitedServer(operator.server, tmp_path)
        await operator.policy("nothing", 'namespace "default" { policy = "read" }')
        caller = await operator.a_token("nothing")

        status, own = await caller.get("/v1/limits/own")

        assert (status, own["Caller"], own["TokenName"]) == (200, f"user:{caller.accessor}", "test")
        assert "core" in [each["Rule"] for each in own["Counters"]]
        assert (await caller.get("/v1/limits"))[0] == 403
        assert (await ApiCaller(operator.server).get("/v1/limits/own"))[0] == 400


@in_virtual_time
async def test_a_ban_of_one_secret_names_its_token(tmp_path: Path) -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        LimitedServer(operator.server, tmp_path)
        other = await operator.a_token(Name="nightly-exporter", Policies=["p"])
        subject = f"token:{hash_secret(other.token)[:16]}"

        await operator.put("/v1/limits/bans", {"Subject": subject, "Duration": "1h", "Reason": "r"})

        assert (await operator.get("/v1/limits"))[1]["Bans"][0]["TokenName"] == "nightly-exporter"
