"""What operators query and change, without a connection: each value of the replies, and the edges of each action."""

import asyncio
from collections.abc import Awaitable
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from tests.limits.builders import MINUTE_MS
from tests.limits.decision_services import ADA, DIRECTORY, AdvancingWorld
from wharf.limits.admin.actions import OperatorActions
from wharf.limits.admin.callers import find_caller
from wharf.limits.admin.errors import ActionError
from wharf.limits.admin.queries import OperatorQueries
from wharf.limits.admin.server import AdminServer
from wharf.limits.config import LimiterSettings
from wharf.limits.core.callers.recognition import make_opaque_caller
from wharf.limits.decisions import AdmittedRequest, IncomingRequest
from wharf.limits.rate_limiter import RateLimiter
from wharf.limits.rules import read_directory

T = TypeVar("T")
RULES = """
profile = "none"
[[rule]]
name = "core"
resource = "rest"
window = "100s"
ceiling = { any = 3, user_enterprise = "unlimited" }
[[rule]]
name = "points"
counts = "points"
per_endpoint = true
window = "60s"
ceiling = 9
[[rule]]
name = "anonymous"
counts = "points"
per_endpoint = true
ceiling = { none = 9 }
"""
MORE = """
[[enterprise]]
name = "corp"
[[app]]
id = 9
owner = "corp"
installations = [{ id = 91, on = "corp", repositories = 3, members = 2 }]
[[repository]]
name = "corp/site"
"""


class Operator:
    """A limiter with counters in memory, that is not open, and what operators do with it."""

    def __init__(self, folder: Path) -> None:
        (folder / "rules.toml").write_text(RULES)
        self.world = AdvancingWorld()
        settings = LimiterSettings(data_folder=folder, rules_file=folder / "rules.toml")
        self.limiter = RateLimiter(settings, self.world, directory=read_directory(DIRECTORY + MORE))
        self.service = self.limiter.decision_service
        self.queries = OperatorQueries(self.limiter)
        self.actions = OperatorActions(self.limiter, self.world)
        self.audit_path = folder / "audit.jsonl"

    async def send(self, path: str = "/x", *, token: str | None = ADA, peer: str = "192.0.2.7") -> bool:
        """Send a request and end it. Return whether it was admitted."""
        authorization = None if token is None else f"Bearer {token}"
        result = await self.service.admit(IncomingRequest("GET", path, "", peer, authorization))
        if isinstance(result, AdmittedRequest):
            await self.service.end_request(result)
            return True
        return False

    def read_audit(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(line) for line in self.audit_path.read_bytes().splitlines()]


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path)


def run(work: Awaitable[T]) -> T:
    async def wait() -> T:
        return await work

    return asyncio.run(wait())


# -- queries -------------------------------------------------------------------------------------------------------


def test_the_busiest_callers_come_first_with_their_busiest_endpoint(operator: Operator) -> None:
    async def scenario() -> dict[str, Any]:
        for path in ("/a", "/b", "/b", "/c"):
            await operator.send(path)
        for peer in ("192.0.2.9", "192.0.2.8"):
            await operator.send(token=None, peer=peer)
        return await operator.queries.list_top_callers()

    top = run(scenario())

    assert top["process"] == operator.service.shared_records.process_id
    assert top["seen"] == {
        top["process"]: [
            {"caller": "user:ada", "requests": 4, "refused": 1, "would_refuse": 0, "busiest": "GET /b"},
            {"caller": "address:192.0.2.8", "requests": 1, "refused": 0, "would_refuse": 0, "busiest": "GET /x"},
            {"caller": "address:192.0.2.9", "requests": 1, "refused": 0, "would_refuse": 0, "busiest": "GET /x"},
        ]
    }


@pytest.mark.parametrize(("minutes", "count"), [(1, 1), (2, 2), (3, 2)])
def test_only_the_last_minutes_are_counted(operator: Operator, minutes: int, count: int) -> None:
    async def scenario() -> dict[str, Any]:
        for _ in range(2):
            await operator.send()
            operator.service.activity.add_admissions_to_rows(operator.service.now_ms())
            operator.world.advance(60)
        return await operator.queries.list_top_callers(minutes)

    (callers,) = run(scenario())["seen"].values()

    assert [caller["requests"] for caller in callers] == [count]


def test_the_activity_can_end_before_now(operator: Operator) -> None:
    async def scenario() -> int:
        now_ms = operator.service.now_ms()
        await operator.send()
        (rows,) = (await operator.queries.read_activity(now_ms - 2 * MINUTE_MS, now_ms - MINUTE_MS)).values()
        return len(rows)

    assert run(scenario()) == 0


def test_a_caller_is_described_with_its_counters_grants_and_ban(operator: Operator) -> None:
    async def scenario() -> dict[str, Any]:
        await operator.send("/a")
        await operator.actions.add_grant("ada", resource="rest", amount=7, for_ms=5_000, by="ops", reason="a move")
        operator.world.advance(0.5)
        await operator.send("/b")
        description = await operator.queries.describe_caller("ada")
        await operator.actions.set_ban(description["ban_subject"], for_ms=1_500, by="ops", reason="")
        return await operator.queries.describe_caller("user:ada")

    described = run(scenario())

    assert (described["caller"], described["credential"], described["case"]) == ("user:ada", "personal_token", "user")
    assert described["ban_subject"].startswith("token:")
    assert described["banned_for_s"] == 2
    assert [(grant["amount"], grant["by"], grant["reason"]) for grant in described["grants"]] == [(7, "ops", "a move")]
    assert [
        (limit["rule"], limit["resource"], limit["key"], limit["used"], limit["limit"], limit["window_s"])
        for limit in described["limits"]
    ] == [
        ("core", "rest", "user:ada", 2, 10, 100),
        ("points", None, "user:ada GET /a", 1, 9, 60),
        ("points", None, "user:ada GET /b", 1, 9, 60),
    ]
    assert described["limits"][0]["resets_in_s"] == 100


def test_a_caller_that_sent_nothing_has_no_ban_and_full_limits(operator: Operator) -> None:
    described = run(operator.queries.describe_caller("ada"))

    assert (described["ban_subject"], described["banned_for_s"], described["grants"]) == (None, None, [])
    assert [(limit["rule"], limit["used"], limit["limit"]) for limit in described["limits"]] == [("core", 0, 3)]


@pytest.mark.parametrize(
    ("seconds", "resets_in_s"), [(0.0, 100), (0.001, 100), (0.999, 100), (1.0, 99), (98.999, 2), (99.0, 1), (99.999, 1)]
)
def test_the_seconds_until_a_limit_resets_are_rounded_up(operator: Operator, seconds: float, resets_in_s: int) -> None:
    async def scenario() -> dict[str, Any]:
        await operator.send()
        operator.world.advance(seconds)
        return await operator.queries.describe_caller("ada")

    assert run(scenario())["limits"][0]["resets_in_s"] == resets_in_s


def test_a_caller_whose_limit_is_unlimited_has_none(operator: Operator) -> None:
    described = run(operator.queries.describe_caller("installation:91"))

    assert [(limit["rule"], limit["limit"]) for limit in described["limits"]] == [("core", 3)]


@pytest.mark.parametrize(
    ("name", "owner", "case", "fields"),
    [
        ("ada", "user:ada", "user", {"user": "user:ada", "address": "address:0.0.0.0"}),
        ("user:ada", "user:ada", "user", {"user": "user:ada"}),
        (
            "address:192.0.2.9",
            "address:192.0.2.9",
            "none",
            {"address": "address:192.0.2.9", "display_name": "192.0.2.9"},
        ),
        ("installation:71", "installation:71", "installation", {"app": "app:7", "installation": "installation:71"}),
        (
            "installation:91",
            "installation:91",
            "installation_enterprise",
            {"app": "app:9", "repositories": 3, "members": 2},
        ),
        ("app:8", "app:8", "client", {"app": "app:8"}),
        ("app:9", "app:9", "client_enterprise", {"app": "app:9"}),
        ("repository:acme/site", "repository:acme/site", "workflow", {"repository": "repository:acme/site"}),
        ("repository:corp/site", "repository:corp/site", "workflow_enterprise", {}),
    ],
)
def test_a_caller_is_found_in_the_directory(
    operator: Operator, name: str, owner: str, case: str, fields: dict[str, object]
) -> None:
    caller = find_caller(operator.service, name)

    assert (caller.owner, caller.caller_class.value) == (owner, case)
    assert {field: getattr(caller, field) for field in fields} == fields


@pytest.mark.parametrize(
    "name",
    ["bob", "user:bob", "installation:99", "installation:x", "app:99", "app:x", "app:²", "repository:a/b", "token:t"],
)
def test_an_unknown_caller_is_reported(operator: Operator, name: str) -> None:
    with pytest.raises(ActionError, match="not found") as caught:
        find_caller(operator.service, name)

    assert caught.value.status == 404


@pytest.mark.parametrize("name", ["credential:0a1b2c3d", "credential 0a1b2c3d", f"credential:0a1b2c3d{'0' * 24}"])
def test_a_caller_is_found_by_the_names_of_refusals_and_of_top(operator: Operator, name: str) -> None:
    caller = make_opaque_caller(f"0a1b2c3d{'0' * 24}", IPv4Address("192.0.2.7"))
    operator.service.activity.last_callers[caller.owner] = caller

    assert find_caller(operator.service, name) is caller
    assert run(operator.actions.set_ban(name, for_ms=1, by="ops", reason=""))["subject"] == "token:0a1b2c3d00000000"


def test_a_user_is_found_by_the_name_in_its_refusals(operator: Operator) -> None:
    run(operator.send())

    assert run(operator.queries.describe_caller("user ID 5"))["caller"] == "user:ada"


def test_a_credential_that_sent_nothing_is_banned_by_its_name(operator: Operator) -> None:
    banned = run(operator.actions.set_ban(f"credential:0a1b2c3d{'0' * 24}", for_ms=1, by="ops", reason=""))

    assert banned["subject"] == "token:0a1b2c3d00000000"


def test_a_name_that_stands_for_several_callers_is_refused(operator: Operator) -> None:
    for end in "01":
        caller = make_opaque_caller(f"0a1b2c3d{'0' * 23}{end}", IPv4Address("192.0.2.7"))
        operator.service.activity.last_callers[caller.owner] = caller

    with pytest.raises(
        ActionError, match=rf"stands for 2 callers: use one of credential:0a1b2c3d{'0' * 24}, credential:"
    ):
        find_caller(operator.service, "credential:0a1b2c3d")


def test_a_caller_that_sent_requests_is_found_as_it_was_recognized(operator: Operator) -> None:
    run(operator.send())

    assert find_caller(operator.service, "ada").token is not None


def test_only_endpoints_of_the_last_hour_are_listed(operator: Operator) -> None:
    async def scenario() -> list[str]:
        await operator.send("/old")
        operator.service.activity.add_admissions_to_rows(operator.service.now_ms())
        operator.world.advance(3_660)
        for _ in range(2):
            await operator.send("/new")
        await operator.send("/other", token=None)
        described = await operator.queries.describe_caller("ada")
        return [limit["key"] for limit in described["limits"] if limit["rule"] != "core"]

    assert run(scenario()) == ["user:ada GET /new"]


def test_a_decision_that_is_not_logged_is_reported(operator: Operator) -> None:
    with pytest.raises(ActionError, match="decision A:B not found: all refusals") as caught:
        run(operator.queries.explain_decision("A:B"))

    assert caught.value.status == 404


def test_the_rules_in_force_are_described(operator: Operator) -> None:
    described = operator.queries.describe_rules()

    assert described["rules"][1] == {
        "name": "points",
        "resource": None,
        "counts": "points",
        "algorithm": "slices",
        "scope": ["caller"],
        "window_s": 60,
        "ceilings": described["rules"][1]["ceilings"],
        "match": [],
        "shadow": False,
        "enforce": 100,
        "source": f"{operator.limiter.settings.rules_file}:8",
    }
    assert described["rules"][1]["ceilings"]["user"] == 9
    assert (described["while_away"], described["findings"], described["refused"]) == (None, [], {})
    assert described["hash"] == operator.service.evaluator.limiter.rulebook.hash


def test_a_rejected_file_is_described(operator: Operator) -> None:
    assert operator.limiter.settings.rules_file is not None
    operator.limiter.settings.rules_file.write_text("rule = 1")

    run(operator.actions.reload_files())

    refused = operator.queries.describe_rules()["refused"]
    assert list(refused) == [str(operator.limiter.settings.rules_file)]


# -- actions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"resource": "core"}, "'core' is not a resource of the rules: use one of rest"),
        ({"amount": 0}, "invalid grant"),
        ({"for_ms": 0}, "invalid grant"),
        ({"for_ms": -1}, "invalid grant"),
        ({"until_ms": 5}, "invalid grant"),
    ],
)
def test_an_invalid_grant_is_refused(operator: Operator, values: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"resource": "rest", "amount": 1, "for_ms": 1, "by": "ops", "reason": "", **values}

    with pytest.raises(ActionError, match=message):
        run(operator.actions.add_grant("ada", **options))

    assert not operator.audit_path.exists()


def test_a_grant_ends_after_a_duration_or_at_a_time(operator: Operator) -> None:
    now_ms = operator.service.now_ms()

    async def scenario() -> list[dict[str, Any]]:
        add = operator.actions.add_grant
        return [
            await add("ada", resource="rest", amount=1, for_ms=1, by="ops", reason="why"),
            await add("ada", resource="rest", amount=2, for_ms=1, until_ms=now_ms + 9, by="ops", reason="why"),
        ]

    grants = run(scenario())

    assert [(grant["amount"], grant["until_ms"] - now_ms) for grant in grants] == [(1, 1), (2, 9)]
    assert [
        {name: entry[name] for name in ("act", "by", "reason", "owner", "amount")} for entry in operator.read_audit()
    ] == [{"act": "grant", "by": "ops", "reason": "why", "owner": "user:ada", "amount": amount} for amount in (1, 2)]


def test_revoked_grants_are_returned_and_audited(operator: Operator) -> None:
    async def scenario() -> list[dict[str, Any]]:
        await operator.actions.add_grant("ada", resource="rest", amount=1, for_ms=9, by="ops", reason="")
        return await operator.actions.revoke_grants("ada", resource="rest", by="boss", reason="enough")

    (grant,) = run(scenario())

    assert (grant["owner"], grant["resource"]) == ("user:ada", "rest")
    entry = operator.read_audit()[1]
    assert (entry["act"], entry["by"], entry["reason"], entry["owner"], entry["resource"]) == (
        "grant revoked",
        "boss",
        "enough",
        "user:ada",
        "rest",
    )


def test_revoking_no_grant_is_an_error(operator: Operator) -> None:
    with pytest.raises(ActionError, match="ada has no such grant") as caught:
        run(operator.actions.revoke_grants("ada", resource=None, by="ops", reason=""))

    assert caught.value.status == 404


@pytest.mark.parametrize(
    ("rule", "names"), [(None, ["core", "points"]), ("rest", ["core"]), ("core", ["core"]), ("points", ["points"])]
)
def test_the_counters_of_a_rule_or_bucket_are_reset(operator: Operator, rule: str | None, names: list[str]) -> None:
    async def scenario() -> tuple[list[str], dict[str, list[int]]]:
        for path in ("/a", "/b"):
            await operator.send(path)
        reset = await operator.actions.reset_counters("ada", rule=rule, by="ops", reason="why")
        used: dict[str, list[int]] = {}
        for limit in (await operator.queries.describe_caller("ada"))["limits"]:
            used.setdefault(limit["rule"], []).append(limit["used"])
        return reset, used

    reset, used = run(scenario())

    assert reset == names
    assert used == {
        "core": [0 if "core" in names else 2],
        "points": [0 if "points" in names else 1] * 2,
    }
    (entry,) = operator.read_audit()
    assert (entry["act"], entry["owner"], entry["rules"], entry["reason"]) == ("reset", "user:ada", names, "why")


@pytest.mark.parametrize("rule", ["nothing", "anonymous"])
def test_a_rule_that_does_not_apply_cannot_be_reset(operator: Operator, rule: str) -> None:
    with pytest.raises(ActionError, match=f"'{rule}' is neither a rule nor a resource that applies to user:ada"):
        run(operator.actions.reset_counters("ada", rule=rule, by="ops", reason=""))


@pytest.mark.parametrize("subject", ["app:7", "token:0123456789abcdef", "address:192.0.2.7", "address:2001:db8::/64"])
def test_a_ban_begins_and_ends(operator: Operator, subject: str) -> None:
    now_ms = operator.service.now_ms()

    async def scenario() -> list[tuple[Any, int]]:
        return [
            (
                await operator.actions.set_ban(subject, for_ms=for_ms, by="ops", reason="noise"),
                await operator.service.evaluator.store.get_ban_end_ms(subject),
            )
            for for_ms in (1, 0)
        ]

    results = run(scenario())

    assert [(reply["subject"], reply["until_ms"], end_ms) for reply, end_ms in results] == [
        (subject, now_ms + 1, now_ms + 1),
        (subject, 0, 0),
    ]
    assert [(entry["act"], entry["subject"], entry["until_ms"]) for entry in operator.read_audit()] == [
        ("ban", subject, now_ms + 1),
        ("unban", subject, 0),
    ]


@pytest.mark.parametrize("subject", ["user:nobody", "installation:7", "ada"])
def test_only_known_users_apps_tokens_and_addresses_can_be_banned(operator: Operator, subject: str) -> None:
    with pytest.raises(ActionError, match="cannot be banned"):
        run(operator.actions.set_ban(subject, for_ms=1, by="ops", reason=""))


@pytest.mark.parametrize(
    "subject",
    [
        "address:", "address:999.1.1.1", "address:192.0.2.0/24", "address:2001:db8::/32", "address:192.0.2.7:80",
        "address:a b", "app:x", "app:", "token:t1", "token:",
    ],
)  # fmt: skip
def test_a_ban_of_an_invalid_subject_is_refused_and_changes_nothing(operator: Operator, subject: str) -> None:
    with pytest.raises(ActionError, match=r"is not an address: expected|is not a subject of a ban: expected"):
        run(operator.actions.set_ban(subject, for_ms=1, by="ops", reason=""))

    assert run(operator.service.evaluator.store.get_ban_end_ms(subject)) == 0


def test_the_ban_of_an_ipv6_address_applies_to_its_network(operator: Operator) -> None:
    banned = run(operator.actions.set_ban("address:2001:db8::7", for_ms=1, by="ops", reason=""))

    assert banned["subject"] == "address:2001:db8::/64"


def test_a_grant_to_an_invalid_address_is_refused(operator: Operator) -> None:
    with pytest.raises(ActionError, match=r"'999\.1\.1\.1' is not an address: expected one such as"):
        run(operator.actions.add_grant("address:999.1.1.1", resource="core", amount=1, for_ms=1, by="ops", reason=""))


def test_limits_are_switched_off_and_on(operator: Operator) -> None:
    now_ms = operator.service.now_ms()

    async def scenario() -> list[dict[str, Any]]:
        return [await operator.actions.set_off(for_ms=for_ms, by="ops", reason="why") for for_ms in (1, 0)]

    assert run(scenario()) == [{"off_until_ms": now_ms + 1}, {"off_until_ms": 0}]
    assert [(entry["act"], entry["for_ms"]) for entry in operator.read_audit()] == [("limits off", 1), ("limits on", 0)]


def test_an_export_is_imported_completely(operator: Operator, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Operator(tmp_path / "other")

    async def scenario() -> dict[str, int]:
        await operator.send()
        await operator.actions.add_grant("ada", resource="rest", amount=1, for_ms=9_000, by="ops", reason="")
        await operator.actions.set_ban("app:7", for_ms=9_000, by="ops", reason="")
        exported = msgspec.json.decode(msgspec.json.encode(operator.queries.export_state()))
        exported["counters"]["gone"] = {"user:ada": [1, 2, 3]}
        return await other.actions.import_state(exported, by="ops", reason="a move")

    assert run(scenario()) == {"grants": 1, "bans": 1, "counters": 2}
    exports = [each.queries.export_state() for each in (operator, other)]
    assert exports[0] == exports[1]
    (entry,) = other.read_audit()
    assert (entry["act"], entry["grants"], entry["counters"], entry["reason"]) == ("import", 1, 2, "a move")


@pytest.mark.parametrize(
    ("exported", "message"),
    [({"form": 2}, "unsupported export format 2"), ({}, "not an export"), ({"form": 1, "grants": 3}, "not an export")],
)
def test_an_invalid_export_is_refused(operator: Operator, exported: dict[str, Any], message: str) -> None:
    with pytest.raises(ActionError, match=message):
        run(operator.actions.import_state(exported, by="ops", reason=""))


@pytest.mark.parametrize(
    ("name", "message"), [("store-down", "no outage to simulate"), ("other", "'other' is not a drill")]
)
def test_only_an_outage_of_a_remote_store_can_be_simulated(operator: Operator, name: str, message: str) -> None:
    with pytest.raises(ActionError, match=message):
        operator.actions.start_drill(name, for_ms=1, by="ops", reason="")


# -- requests to the admin endpoint ---------------------------------------------------------------------------------


async def exchange(operator: Operator, *requests: bytes) -> list[tuple[bytes, Any]]:
    """Send requests to an admin endpoint, each over its own connection. Return status lines and decoded bodies."""
    admin = AdminServer(operator.limiter, operator.world)
    await admin.open()
    replies = []
    try:
        for request in requests:
            reader, writer = await asyncio.open_unix_connection(operator.limiter.settings.socket_path)
            writer.write(request)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            replies.append((head.partition(b"\r\n")[0], msgspec.json.decode(body)))
    finally:
        await admin.close()
    return replies


def make_post(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


OK, BAD, MISSING = b"HTTP/1.1 200 OK", b"HTTP/1.1 400 Bad Request", b"HTTP/1.1 404 Not Found"


def test_queries_and_actions_are_served_by_their_paths(operator: Operator) -> None:
    replies = run(
        exchange(
            operator,
            b"GET /callers/repository:acme/site HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /callers/user%3Aada HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /rules/ HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /why/A:B HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /orgs/acme/insights/api/summary-stats HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /orgs/acme/insights/api/summary-stats?min_timestamp=2020-01-01 HTTP/1.1\r\nHost: a\r\n\r\n",
            make_post("/ban", b'{"subject": "app:7", "for_ms": 5}'),
            make_post("/ban", b"{"),
            make_post("/nothing", b""),
            make_post("/drill", b'{"what": "x"}'),
            make_post("/reload", b""),
            b"what\r\n\r\n",
            b"POST /ban HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"POST /ban HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % ((64 << 20) + 1),
        )
    )

    assert [status for status, _ in replies] == [
        *(OK, OK, OK, MISSING, MISSING, BAD, OK),
        *(OK, BAD, MISSING, BAD, OK, BAD, BAD, BAD),
    ]
    assert [replies[index][1]["caller"] for index in (0, 1)] == ["repository:acme/site", "user:ada"]
    assert replies[7][1] == {
        "subject": "app:7",
        "until_ms": operator.service.now_ms() + 5,
        "was_banned": False,
        "is_enforced": True,
        "is_shadow_for_all": False,
        "is_shadow_for_rules": False,
    }
    assert [entry["by"] for entry in operator.read_audit()] == ["unknown"]
    assert replies[13][1]["message"] == "The body needs a Content-Length of at most 64 MiB."


@pytest.mark.parametrize(("query", "count"), [("", 1), ("?minutes=2", 2), ("?minutes=99999", 2), ("?minutes=100000", 1), ("?minutes=x", 1), ("?minutes=²", 1)])  # fmt: skip
def test_the_minutes_of_a_query_are_a_number_of_up_to_five_digits(operator: Operator, query: str, count: int) -> None:
    async def scenario() -> Any:
        for _ in range(2):
            await operator.send()
            operator.service.activity.add_admissions_to_rows(operator.service.now_ms())
            operator.world.advance(60)
        target = f"/top{query}".replace("²", "%C2%B2")
        (reply,) = await exchange(operator, f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        return reply[1]

    (callers,) = run(scenario())["seen"].values()

    assert [caller["requests"] for caller in callers] == [count]
