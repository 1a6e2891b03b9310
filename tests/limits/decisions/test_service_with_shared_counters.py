"""The decision service behaves the same with counters in its process and with counters elsewhere."""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from tests.limits.builders import MINUTE_MS, build_rules_text
from tests.limits.decision_services import (
    ADA,
    CLIENT_ID,
    DIRECTORY,
    OAUTH,
    AdvancingWorld,
    AsgiCaller,
    count_slots,
    count_used,
    encode_basic,
    send_request,
)
from wharf.limits.config import LimiterSettings
from wharf.limits.core.callers.caller import CallerClass
from wharf.limits.core.counting.counters import Counters
from wharf.limits.core.limiter import Grant
from wharf.limits.core.plans import Charge
from wharf.limits.core.rule import ConnectionClass
from wharf.limits.decisions import AdmittedRequest, DecisionService, IncomingRequest, LocalReply
from wharf.limits.decisions.alerts import Alert, AlertQueue
from wharf.limits.decisions.evaluator import LimitEvaluator
from wharf.limits.rules import read_directory, read_rules
from wharf.limits.stores import MemoryStore
from wharf.limits.stores.port import StoreUnavailable

T = TypeVar("T")
BATCH = "/acme/site.git/info/lfs/objects/batch"
SMALL = build_rules_text(
    '[[rule]]\nname = "concurrent"\ncounts = "connections"\nceiling = 2',
    '[[rule]]\nname = "cpu"\ncounts = "cpu_ms"\nceiling = 90000',
    '[[rule]]\nname = "content"\ncounts = "content"\nceiling = 9',
    '[[rule]]\nname = "logins"\ncounts = "failed_logins"\nscope = ["address"]\nceiling = 2',
    '[[endpoint]]\nmatch = ["POST /graphql"]\ninterface = "graphql"',
    '[[endpoint]]\nmatch = ["* /{a}/{b}.git/info/lfs/*"]\ninterface = "large_files"',
)  # fmt: skip


class SharedMemoryStore(MemoryStore):
    """A store in memory that the decision service takes for one in another process. It can be unavailable."""

    is_available = True

    @property
    def local_counters(self) -> Counters | None:
        return None

    async def add_usage(self, charges: Iterable[Charge], amount: int) -> None:
        if not self.is_available:
            raise StoreUnavailable
        await super().add_usage(charges, amount)


@pytest.fixture(params=["local", "shared"])
def service(request: pytest.FixtureRequest) -> DecisionService:
    return make_service(is_local=request.param == "local")


def make_service(rules: str = SMALL, *, is_local: bool = True, folder: Path | None = None) -> DecisionService:
    world, rule_set = AdvancingWorld(), read_rules(rules)
    store = (MemoryStore if is_local else SharedMemoryStore)(world, rule_set)
    evaluator = LimitEvaluator(rule_set, store, lambda: world.now_ns() // 1_000_000)
    return DecisionService(evaluator, world, LimiterSettings(), directory=read_directory(DIRECTORY), folder=folder)


def run(scenario: Awaitable[T]) -> T:
    async def wait() -> T:
        return await scenario

    return asyncio.run(wait())


def make_incoming(path: str = "/x", *, token: str | None = ADA, method: str = "GET", **fields: Any) -> IncomingRequest:
    authorization = None if token is None else f"Bearer {token}"
    return IncomingRequest(method, path, "", "192.0.2.7", **{"authorization": authorization, **fields})


async def admit(
    service: DecisionService, incoming: IncomingRequest | None = None, body: bytes | None = None
) -> AdmittedRequest:
    result = await service.admit(incoming or make_incoming(), body)
    assert isinstance(result, AdmittedRequest)
    return result


async def refuse(service: DecisionService, incoming: IncomingRequest, body: bytes | None = None) -> LocalReply:
    result = await service.admit(incoming, body)
    assert isinstance(result, LocalReply)
    return result


def advance(service: DecisionService, seconds: float) -> None:
    assert isinstance(service.world, AdvancingWorld)
    service.world.advance(seconds)


# -- request ids ---------------------------------------------------------------------------------------------------


def test_request_ids_are_numbered_and_end_with_the_second() -> None:
    service = make_service()
    now_ms = 0x1234 * 1_000

    ids = [service.make_request_id(at_ms) for at_ms in (now_ms, now_ms + 999, now_ms + 1_000)]

    parts = [request_id.split(":") for request_id in ids]
    assert [(number, second) for *_, number, second in parts] == [("0001", "1234"), ("0002", "1234"), ("0003", "1235")]
    assert len({tuple(part[:3]) for part in parts}) == 1
    assert [len(group) for group in parts[0][:3]] == [4, 6, 8]


# -- admitting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/graphql", True),
        ("GET", "/graphql", False),
        ("POST", "/GraphQL/", True),
        ("POST", BATCH, True),
        ("POST", f"{BATCH}/", True),
        ("POST", BATCH.replace("h", "H") + ".json", True),
        ("POST", "/acme/site.git/info/lfs/locks", False),
        ("PUT", BATCH, True),
        ("POST", "/other/objects/batch", False),
        ("POST", "/x", False),
    ],
)
def test_only_queries_and_batches_need_the_body(method: str, path: str, expected: bool) -> None:
    assert make_service().needs_body(method, path) is expected


def test_an_admitted_request_is_charged_logged_and_running(service: DecisionService) -> None:
    admitted = run(admit(service, make_incoming(is_conditional=True)))

    assert (admitted.id in service.running_requests, admitted.is_conditional, admitted.caller.owner) == (
        True,
        True,
        "user:ada",
    )
    assert (admitted.started_s, admitted.working_since_s) == (service.world.monotonic_s(),) * 2
    assert (count_used(service, "core"), count_slots(service), service.activity.admitted) == (1, 1, 1)
    (entry,) = service.decision_log.list_recent()
    assert (entry.id, entry.method, entry.path, entry.at_ms) == (admitted.id, "GET", "/x", service.now_ms())


def test_a_refused_request_is_logged_and_counted_and_not_running(service: DecisionService) -> None:
    async def scenario() -> LocalReply:
        for _ in range(2):
            await admit(service)
        return await refuse(service, make_incoming("/y", token=OAUTH, method="PUT"))

    reply = run(scenario())

    entry = next(service.decision_log.list_recent())
    headers = dict(reply.headers)
    assert (reply.status, reply.is_refusal, headers["x-oauth-scopes"]) == (403, True, "repo, read:org")
    assert (entry.id, entry.method, entry.path, entry.at_ms) == (
        headers["x-github-request-id"],
        "PUT",
        "/y",
        service.now_ms(),
    )
    assert (len(service.running_requests), service.activity.admitted, sum(service.activity.verdicts.values())) == (
        2,
        2,
        1,
    )
    (row,) = service.activity.list_rows()
    assert (row.secondary, row.minute) == (1, service.now_ms() // MINUTE_MS)


@pytest.mark.parametrize(
    ("path", "body", "cause"),
    [
        ("/graphql", b"no query", "too_complex"),
        (BATCH, b"no batch", "too_complex"),
        (BATCH, b'{"query": "{ a }"}', None),
        ("/graphql", b'{"objects": []}', None),
        ("/graphql", b'{"query": "{ a }"}', None),
        (BATCH, b'{"objects": [{}]}', None),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(
    service: DecisionService, path: str, body: bytes, cause: str | None
) -> None:
    result = run(service.admit(make_incoming(path, method="POST"), body))

    if cause is None:
        assert isinstance(result, AdmittedRequest)
    else:
        assert isinstance(result, LocalReply)
        assert (result.status, msgspec.json.decode(result.body)["cause"]) == (400, cause)
    assert count_used(service, "core") == (cause is None)


def test_a_query_is_charged_by_its_cost(service: DecisionService) -> None:
    query = b'{"query": "{ a(first: 100) { b(first: 100) { c(first: 1) { d } } } }"}'

    admitted = run(admit(service, make_incoming("/graphql", method="POST"), query))

    assert admitted.decision is not None
    assert service.evaluator.query_costs.compute_body_cost(query).cost == 101


def test_a_wrong_credential_gets_401_until_the_address_has_sent_too_many(service: DecisionService) -> None:
    async def scenario() -> list[LocalReply]:
        return [await refuse(service, make_incoming("/y", token="wrong", method="PUT")) for _ in range(3)]

    replies = run(scenario())

    assert [reply.status for reply in replies] == [401, 401, 403]
    assert msgspec.json.decode(replies[0].body)["status"] == "401"
    headers = dict(replies[0].headers)
    assert headers["content-type"] == "application/json; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert (headers["x-ratelimit-used"], "lfs-authenticate" in headers) == ("0", False)
    assert service.activity.unauthorized == 3
    (entry,) = service.decision_log.list_recent()
    assert (entry.id, entry.method, entry.path, entry.at_ms, entry.caller.owner) == (
        dict(replies[2].headers)["x-github-request-id"],
        "PUT",
        "/y",
        service.now_ms(),
        "address:192.0.2.7",
    )
    assert [row.secondary for row in service.activity.list_rows()] == [1]


def test_a_wrong_credential_for_large_files_is_answered_as_their_clients_expect(service: DecisionService) -> None:
    reply = run(refuse(service, make_incoming(BATCH, token="wrong", method="POST"), b"{}"))

    headers, body = dict(reply.headers), msgspec.json.decode(reply.body)
    assert (reply.status, headers["lfs-authenticate"]) == (401, 'Basic realm="large files"')
    assert body["request_id"] == headers["x-github-request-id"]


def test_an_unknown_client_secret_is_a_wrong_credential(service: DecisionService) -> None:
    incoming = make_incoming(token=None, authorization=encode_basic(CLIENT_ID, "wrong"))

    assert run(refuse(service, incoming)).status == 401


def test_while_limits_are_off_requests_are_admitted_without_a_decision(service: DecisionService) -> None:
    run(service.overrides.set_off_until(service.now_ms() + 10_000))

    admitted = run(admit(service, make_incoming(is_conditional=True)))

    assert (admitted.decision, admitted.is_conditional, admitted.caller.owner) == (None, False, "address:192.0.2.7")
    assert (service.build_header_pairs(admitted), service.build_header_block(admitted)) == ([], b"")
    assert (count_used(service, "core"), service.running_requests) == (0, {})
    run(service.end_request(admitted))
    assert admitted.is_ended
    advance(service, 10)
    assert run(admit(service)).decision is not None


def test_a_machine_is_admitted_and_counted_by_the_rules_that_name_it() -> None:
    rules = build_rules_text('[[rule]]\nname = "points"\ncounts = "points"\nceiling = { any = 5 }')
    service = make_service(rules)
    admitted = service.admit_machine(make_incoming())

    named = [rule.name for rule in service.evaluator.rules.rules if CallerClass.MACHINE in rule.ceilings]
    assert (admitted.decision, service.activity.admitted, [*service.activity.rules]) == (None, 1, named)
    assert service.make_request_id(0).split(":")[3] == "0002"


# -- replies of the limiter ----------------------------------------------------------------------------------------


def test_an_error_reply_shows_the_bucket_of_the_admitted_request(service: DecisionService) -> None:
    async def scenario() -> tuple[AdmittedRequest, LocalReply]:
        admitted = await admit(service, make_incoming(token=OAUTH))
        return admitted, await service.render_error(make_incoming(), 502, "Bad Gateway", admitted)

    admitted, reply = run(scenario())

    headers = dict(reply.headers)
    assert (reply.status, msgspec.json.decode(reply.body)) == (
        502,
        {"message": "Bad Gateway", "documentation_url": "/docs/rate-limits", "status": "502"},
    )
    assert (headers["x-ratelimit-used"], headers["x-github-request-id"], headers["x-oauth-scopes"]) == (
        "1",
        admitted.id,
        "repo, read:org",
    )
    assert (headers["content-type"], headers["cache-control"]) == ("application/json; charset=utf-8", "no-cache")


def test_an_error_reply_before_the_decision_shows_the_bucket_of_the_address(service: DecisionService) -> None:
    reply = run(service.render_error(make_incoming(), 400, "Bad Request"))

    headers = dict(reply.headers)
    assert (headers["x-ratelimit-limit"], headers["x-ratelimit-used"]) == ("1000000", "0")
    assert headers["x-github-request-id"].split(":")[3] == "0001"


def test_an_error_reply_has_no_limit_headers_if_the_request_was_not_decided(service: DecisionService) -> None:
    async def scenario() -> list[LocalReply]:
        machine = service.admit_machine(make_incoming())
        decided = await admit(service)
        replies = [await service.render_error(make_incoming(), 500, "x", machine)]
        await service.overrides.set_off_until(service.now_ms() + 10_000)
        return [*replies, *[await service.render_error(make_incoming(), 500, "x", given) for given in (None, decided)]]

    for reply in run(scenario()):
        assert [name for name, _ in reply.headers] == ["content-type", "cache-control"]


@pytest.mark.parametrize(
    ("method", "path", "is_own"),
    [("GET", "/rate_limit", True), ("HEAD", "/meta", True), ("POST", "/meta", False), ("GET", "/x", False)],
)
def test_only_reads_of_own_pages_are_answered_here(
    service: DecisionService, method: str, path: str, is_own: bool
) -> None:
    async def scenario() -> LocalReply | None:
        incoming = make_incoming(path, method=method, token=OAUTH)
        admitted = await admit(service, incoming)
        page = await service.render_page(incoming, admitted)
        if page is not None:
            headers = dict(page.headers)
            assert (headers["x-github-request-id"], headers["x-oauth-scopes"]) == (admitted.id, "repo, read:org")
            assert (headers["cache-control"], "x-ratelimit-used" in headers) == ("no-cache", True)
        return page

    page = run(scenario())

    assert (page is not None, page is not None and (page.status, page.is_refusal) == (200, False)) == (is_own, is_own)


@pytest.mark.parametrize(("path", "status"), [("/rate_limit", 404), ("/meta", 200)])
def test_while_limits_are_off_own_pages_have_no_limit_headers(service: DecisionService, path: str, status: int) -> None:
    page = run(service.render_page(make_incoming(path), service.admit_machine(make_incoming(path))))

    assert page is not None
    assert (page.status, page.headers) == (status, (("content-type", "application/json; charset=utf-8"),))
    assert msgspec.json.decode(page.body)


# -- charges of admitted requests ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "is_conditional", "token", "used"),
    [
        (200, True, ADA, 1),
        (304, True, ADA, 0),
        (304, False, ADA, 1),
        (304, True, None, 1),
        (499, True, ADA, 1),
        (500, False, ADA, 0),
        (503, False, None, 0),
    ],
)
def test_unchanged_replies_and_faults_are_refunded(
    service: DecisionService, status: int, is_conditional: bool, token: str | None, used: int
) -> None:
    async def scenario() -> AdmittedRequest:
        admitted = await admit(service, make_incoming(token=token, is_conditional=is_conditional))
        await service.on_status(admitted, status)
        return admitted

    admitted = run(scenario())

    owner = "address:192.0.2.7" if token is None else "user:ada"
    assert (count_used(service, "core", owner), dict(service.build_header_pairs(admitted))[b"x-ratelimit-used"]) == (
        used,
        b"%d" % used,
    )


def test_a_request_whose_caller_left_is_refunded_and_ended(service: DecisionService) -> None:
    async def scenario() -> AdmittedRequest:
        admitted = await admit(service)
        await service.on_caller_gone(admitted)
        return admitted

    assert run(scenario()).is_ended
    assert (count_used(service, "core"), count_slots(service), service.running_requests) == (0, 0, {})


def test_created_content_is_charged(service: DecisionService) -> None:
    async def scenario() -> None:
        await service.on_content_created(await admit(service))
        await service.on_content_created(service.admit_machine(make_incoming()))

    run(scenario())

    assert count_used(service, "content") == 1


def test_a_machine_is_neither_refunded_nor_charged(service: DecisionService) -> None:
    async def scenario() -> None:
        machine = service.admit_machine(make_incoming())
        await service.on_status(machine, 500)
        await service.on_caller_gone(machine)

    run(scenario())

    assert count_used(service, "core") == 0


def test_an_ended_request_is_charged_once_for_its_work(service: DecisionService) -> None:
    async def scenario() -> AdmittedRequest:
        admitted = await admit(service)
        admitted.on_long_running = lambda: None
        advance(service, 0.5)
        for _ in range(2):
            await service.end_request(admitted)
            advance(service, 1)
        return admitted

    admitted = run(scenario())

    assert (admitted.is_ended, admitted.on_long_running, service.running_requests) == (True, None, {})
    assert (count_used(service, "cpu"), count_slots(service)) == (500, 0)


def test_a_paused_request_is_charged_only_for_its_work(service: DecisionService) -> None:
    async def scenario() -> None:
        admitted = await admit(service)
        advance(service, 0.25)
        admitted.pause_work(service.world.monotonic_s())
        advance(service, 5)
        await service.end_request(admitted)

    run(scenario())

    assert count_used(service, "cpu") == 250


def test_code_that_cannot_await_ends_a_request_too(service: DecisionService) -> None:
    async def scenario() -> None:
        admitted = await admit(service)
        for _ in range(2):
            service.end_request_later(admitted)
        await service.close()
        assert admitted.is_ended

    run(scenario())

    assert count_slots(service) == 0


def test_a_slot_is_freed_although_the_work_cannot_be_charged() -> None:
    service = make_service(is_local=False)
    store = service.evaluator.store
    assert isinstance(store, SharedMemoryStore)

    async def scenario() -> None:
        admitted = await admit(service)
        advance(service, 1)
        store.is_available = False
        await service.end_request(admitted)

    run(scenario())

    assert (count_slots(service), count_used(service, "cpu")) == (0, 0)


def test_closing_ends_all_requests(service: DecisionService) -> None:
    async def scenario() -> None:
        service.open()
        for _ in range(2):
            await admit(service)
        await service.close()

    run(scenario())

    assert (count_slots(service), service.running_requests, [row.total for row in service.activity.list_rows()]) == (
        0,
        {},
        [2],
    )


def test_an_opened_service_creates_its_folder(tmp_path: Path) -> None:
    service = make_service(folder=tmp_path / "a" / "b")

    async def scenario() -> None:
        for _ in range(2):
            service.open()
            await service.close()

    run(scenario())

    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("path", ["/graphql", "/x", "/meta"])
def test_the_asgi_middleware_serves_requests_with_both_kinds_of_counters(service: DecisionService, path: str) -> None:
    caller = AsgiCaller(path, method="GET" if path == "/meta" else "POST", token=ADA, body=b'{"query": "{ a }"}')
    reply = send_request(service, caller)

    assert (reply.status, reply.headers["x-ratelimit-used"], count_slots(service)) == (200, "1", 0)


def test_an_application_that_fails_within_its_reply_sends_no_second_one(service: DecisionService) -> None:
    started: list[bool] = []

    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise LookupError

    class Recorder(AsgiCaller):
        """A caller that counts the replies that begin."""

        async def send(self, message: Any) -> None:
            started.append(message["type"] == "http.response.start")
            await super().send(message)

    caller = Recorder(token=ADA)
    with pytest.raises(LookupError):
        send_request(service, caller, application)

    assert (sum(started), caller.reply.body, count_slots(service), count_used(service, "core")) == (1, b"part", 0, 1)


# -- maintenance ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "is_called"), [(0.999, False), (1.0, True), (3.0, True)])
def test_a_request_that_has_run_for_a_second_is_reported_once(
    service: DecisionService, seconds: float, is_called: bool
) -> None:
    calls: list[str] = []

    async def scenario() -> None:
        admitted = await admit(service)
        admitted.on_long_running = lambda: calls.append("long")
        advance(service, seconds)
        for _ in range(2):
            await service.run_maintenance(should_renew=False)

    run(scenario())

    assert calls == ["long"] * is_called


def test_the_work_of_running_requests_is_charged_in_slices(service: DecisionService) -> None:
    used: list[int] = []

    async def scenario() -> None:
        await admit(service)
        for seconds in (4.5, 0.5, 1.0):
            advance(service, seconds)
            await service.run_maintenance(should_renew=False)
            used.append(count_used(service, "cpu"))

    run(scenario())

    assert used == [0, 5_000, 5_000]


@pytest.mark.parametrize(("should_renew", "slots"), [(True, 1), (False, 0)])
def test_the_slots_of_running_requests_are_renewed(service: DecisionService, should_renew: bool, slots: int) -> None:
    async def scenario() -> None:
        await admit(service)
        for _ in range(2):
            advance(service, 20)
            await service.run_maintenance(should_renew=should_renew)

    run(scenario())

    assert (count_slots(service), service.revived_leases) == (slots, 0)


def test_slots_that_expired_meanwhile_are_taken_again_and_counted(service: DecisionService) -> None:
    async def scenario() -> None:
        for _ in range(2):
            await admit(service)
        for _ in range(2):
            advance(service, 31)
            await service.run_maintenance(should_renew=True)

    run(scenario())

    assert (count_slots(service), service.revived_leases) == (2, 4)


def test_a_minute_of_activity_is_written_once_a_second(service: DecisionService) -> None:
    async def scenario() -> None:
        await admit(service)
        await service.run_maintenance(should_renew=False)

    run(scenario())

    assert [(row.total, row.last_ms) for row in service.activity.list_rows()] == [(1, service.now_ms())]


def test_expired_grants_and_the_end_of_the_time_without_limits_are_recorded(tmp_path: Path) -> None:
    service = make_service(folder=tmp_path)
    until_ms = service.now_ms() + 5_000
    grant = Grant(owner="user:ada", resource="core", amount=7, until_ms=until_ms, by="ops", reason="a move")
    limits: list[str | None] = []

    async def scenario() -> None:
        await service.overrides.add_grants([grant])
        await service.overrides.set_off_until(until_ms)
        for seconds in (4, 1, 1):
            advance(service, seconds)
            await service.run_maintenance(should_renew=False)
            admitted = await admit(service)
            headers = dict(service.build_header_pairs(admitted))
            limits.append(headers.get(b"x-ratelimit-limit", b"").decode())
        await service.close()

    run(scenario())

    lines = [msgspec.json.decode(line) for line in (tmp_path / "audit.jsonl").read_bytes().splitlines()]
    assert len({line.pop("id") for line in lines}) == len(lines)
    assert limits == ["", "1000000", "1000000"]
    assert lines == [
        {
            "at_ms": until_ms,
            "act": "grant ended",
            "by": "time",
            "owner": "user:ada",
            "resource": "core",
            "amount": 7,
        },
        {"at_ms": until_ms, "act": "limits are on again", "by": "time"},
    ]


def test_without_a_folder_no_audit_file_is_written(service: DecisionService) -> None:
    service.write_audit_entry("test", by="ops")


def test_alerts_are_sent_once(service: DecisionService) -> None:
    sent: list[tuple[str, int]] = []

    async def send(alerts: list[Alert]) -> None:
        sent.extend((alert.caller, alert.percent) for alert in alerts)

    async def scenario() -> None:
        await service.set_rules(SMALL.replace("ceiling = 1000000", "ceiling = 1"), "rules.toml")
        service.alerts, service.send_alerts = AlertQueue(), send
        await admit(service)
        for _ in range(2):
            await service.run_maintenance(should_renew=False)
        await service.close()

    run(scenario())

    assert sent == [("user:ada", 95)]


def test_an_endpoint_that_waits_holds_no_slot_of_plain_requests() -> None:
    service = make_service()

    admitted = run(admit(service, make_incoming(connection=ConnectionClass.WAITING)))

    assert (count_slots(service), admitted.decision is not None) == (0, True)


def test_changed_rules_apply_to_decisions_and_headers(service: DecisionService) -> None:
    async def scenario() -> Mapping[bytes, bytes]:
        await service.set_rules(SMALL.replace("ceiling = 1000000", "ceiling = 77"), "rules.toml")
        return dict(service.build_header_pairs(await admit(service)))

    headers = run(scenario())

    assert headers[b"x-ratelimit-limit"] == b"77"
    assert service.replies.header_writer.rules is service.evaluator.rules
