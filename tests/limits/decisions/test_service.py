"""The decision service: cached callers, wrong credentials, and the decision log."""

import asyncio
import datetime
from pathlib import Path

import msgspec
import pytest

from tests.limits.builders import NOON_MS, a_user
from tests.limits.decision_services import (
    ADA,
    DIRECTORY,
    AdvancingWorld,
    AsgiCaller,
    make_decision_service,
    send_request,
)
from wharf.limits.config import DecisionLogSettings, LimiterSettings
from wharf.limits.core.callers.addresses import read_proxies
from wharf.limits.core.callers.credentials import hash_secret
from wharf.limits.decisions import DecisionService, IncomingRequest, run_immediately
from wharf.limits.decisions.evaluator import LimitEvaluator
from wharf.limits.rules import read_directory, read_rules
from wharf.limits.stores import MemoryStore
from wharf.world import SimulatedWorld


def test_callers_with_equal_fields_are_equal_and_share_their_plan() -> None:
    decision_service = make_decision_service()
    first, second = a_user(), a_user()

    assert (first == second, hash(first) == hash(second), first is second) == (True, True, False)
    assert a_user("bob") != first
    assert len({first, second}) == 1
    rulebook = decision_service.evaluator.limiter.rulebook
    assert rulebook.build_core_charge(first) == rulebook.build_core_charge(second)


@pytest.mark.parametrize("query", ["access_token=x", "page=2&client_secret=y", "access_token"])
def test_credentials_in_the_query_are_refused_even_if_the_caller_is_cached(query: str) -> None:
    decision_service = make_decision_service()
    known = send_request(decision_service, AsgiCaller(token=ADA, query="page=2"))

    assert (known.status, send_request(decision_service, AsgiCaller(token=ADA, query=query)).status) == (200, 401)


def test_a_revoked_token_is_refused_from_the_next_request() -> None:
    decision_service = make_decision_service()
    before = send_request(decision_service, AsgiCaller(token=ADA)).status
    decision_service.caller_resolver.set_directory(
        read_directory(DIRECTORY.replace('name = "laptop",', 'name = "laptop", revoked = true,'))
    )

    assert (before, send_request(decision_service, AsgiCaller(token=ADA)).status) == (200, 401)


def test_a_token_is_refused_as_soon_as_it_expires() -> None:
    world = AdvancingWorld()
    decision_service = make_decision_service(world=world)
    now_s = world.now_ns() // 1_000_000_000
    expiry = datetime.datetime.fromtimestamp(now_s + 10, tz=datetime.UTC).isoformat()
    decision_service.caller_resolver.set_directory(
        read_directory(f'[[user]]\nlogin = "ada"\ntokens = [{{ sha256 = "{hash_secret(ADA)}", expires = {expiry} }}]\n')
    )
    before = send_request(decision_service, AsgiCaller(token=ADA)).status
    world.advance(11)

    assert (before, send_request(decision_service, AsgiCaller(token=ADA)).status) == (200, 401)


def test_behind_proxies_each_forwarded_address_is_a_separate_caller() -> None:
    decision_service = make_decision_service(settings=LimiterSettings(proxies=read_proxies(hops=1)))

    used = [
        send_request(decision_service, AsgiCaller(headers=[("x-forwarded-for", address)])).headers["x-ratelimit-used"]
        for address in ("203.0.113.1", "203.0.113.2", "203.0.113.1")
    ]

    assert used == ["1", "1", "2"]


def test_addresses_in_the_decision_log_can_be_truncated(tmp_path: Path) -> None:
    decision_service = make_decision_service(
        folder=tmp_path, settings=LimiterSettings(decisions=DecisionLogSettings(cuts_addresses=True))
    )
    reply = send_request(decision_service, AsgiCaller(token=ADA))

    found = decision_service.decision_log.find(reply.headers["x-github-request-id"])

    assert found is not None
    assert found["address"] == "192.0.2.0"


def test_many_wrong_credentials_of_one_address_are_refused_before_they_are_checked() -> None:
    decision_service = make_decision_service()

    statuses = [send_request(decision_service, AsgiCaller(token=f"wrong{n}")).status for n in range(100)]

    assert (statuses[0], statuses[-1], statuses.count(401)) == (401, 403, 60)
    assert send_request(decision_service, AsgiCaller(token=ADA)).status == 200


def test_long_values_chosen_by_callers_use_little_memory() -> None:
    decision_service = make_decision_service(settings=LimiterSettings(proxies=read_proxies(hops=1)))
    long_header = ", ".join(["203.0.113.1"] * 500)

    replies = [
        send_request(decision_service, AsgiCaller("/" + "x" * 8_000, headers=[("x-forwarded-for", long_header)]))
        for _ in range(2)
    ]

    assert [reply.headers["x-ratelimit-used"] for reply in replies] == ["1", "2"]
    assert len(decision_service.caller_resolver) == 0
    assert [len(logged.path) for logged in decision_service.decision_log.list_recent()] == [1_024, 1_024]


def make_logging_service(folder: Path, *, one_in: int = 1, bytes_most: int = 1 << 20) -> DecisionService:
    decisions = DecisionLogSettings(one_in=one_in, bytes_most=bytes_most, kept_ms=24 * 3_600_000)
    return make_decision_service(
        '[[rule]]\nname = "core"\nceiling = 40\n',
        world=AdvancingWorld(),
        settings=LimiterSettings(decisions=decisions),
        folder=folder,
    )


def write_log(decision_service: DecisionService, folder: Path) -> list[str]:
    asyncio.run(decision_service.decision_log.write(decision_service.now_ms()))
    return [line for name in ("decisions.1.jsonl", "decisions.jsonl") if (folder / name).exists()
            for line in (folder / name).read_text().splitlines()]  # fmt: skip


def test_8_the_log_has_all_refusals_and_a_sample_of_admissions(tmp_path: Path) -> None:
    decision_service = make_logging_service(tmp_path, one_in=10)
    for _ in range(45):
        send_request(decision_service, AsgiCaller(token=ADA))

    verdicts = [msgspec.json.decode(line)["verdict"] for line in write_log(decision_service, tmp_path)]

    assert (verdicts.count("admitted"), verdicts.count("primary")) == (4, 5)


def test_a_decision_in_memory_equals_its_line_in_the_log(tmp_path: Path) -> None:
    decision_service = make_logging_service(tmp_path)
    for path in ("/one", "/two", "/" + "x" * 2_000):
        for _ in range(14):
            send_request(decision_service, AsgiCaller(path, token=ADA))

    lines = [msgspec.json.decode(line) for line in write_log(decision_service, tmp_path)]

    assert [line["verdict"] for line in lines] == ["admitted"] * 40 + ["primary"] * 2
    assert [decision_service.decision_log.find(line["request_id"]) for line in lines] == lines


def test_8_decisions_that_cannot_be_written_are_counted_as_dropped(tmp_path: Path) -> None:
    decision_service = make_logging_service(tmp_path)
    (tmp_path / "decisions.jsonl").mkdir()
    for _ in range(3):
        send_request(decision_service, AsgiCaller(token=ADA))

    with pytest.raises(IsADirectoryError):
        write_log(decision_service, tmp_path)

    assert decision_service.decision_log.dropped_decisions == 3


def test_8_the_log_is_limited_in_size_and_age(tmp_path: Path) -> None:
    decision_service = make_logging_service(tmp_path, bytes_most=20_000)
    for _ in range(20):
        for _ in range(5):
            send_request(decision_service, AsgiCaller(token=ADA))
        write_log(decision_service, tmp_path)
    size = sum(file.stat().st_size for file in tmp_path.glob("decisions*.jsonl"))
    assert isinstance(decision_service.world, AdvancingWorld)
    for _ in range(2):
        decision_service.world.advance(13 * 3_600)
        send_request(decision_service, AsgiCaller("/later", token=ADA))
        lines = write_log(decision_service, tmp_path)

    assert 10_000 < size < 40_000  # A file is rotated at half the size; the last write can exceed it.
    assert {msgspec.json.decode(line)["path"] for line in lines} == {"/later"}


def test_without_a_directory_every_token_is_refused_and_anonymous_requests_are_admitted() -> None:
    rules, world = read_rules(""), SimulatedWorld(1)
    evaluator = LimitEvaluator(rules, MemoryStore(world, rules), lambda: NOON_MS)
    decision_service = DecisionService(evaluator, world)

    results = [
        run_immediately(decision_service.admit(IncomingRequest("GET", "/x", "", "192.0.2.7", authorization)))
        for authorization in (f"Bearer {ADA}", None)
    ]

    assert [getattr(result, "status", 200) for result in results] == [401, 200]


def test_a_coroutine_that_waits_cannot_run_immediately_and_is_closed() -> None:
    events: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            events.append("closed")

    with pytest.raises(AssertionError, match="waited"):
        run_immediately(wait())
    assert events == ["closed"]
