"""The desk: who a request is from is remembered, and never longer than it is true."""

import asyncio
import datetime
from pathlib import Path

import msgspec
import pytest

from tests.limits.builders import a_user
from tests.limits.front.desks import ADA, DIRECTORY, Caller, MovingWorld, a_desk, ask
from wharf.limits.config import DecisionLogSettings, LimiterSettings
from wharf.limits.core.callers.addresses import read_proxies
from wharf.limits.core.callers.credentials import hash_secret
from wharf.limits.decisions import DecisionService
from wharf.limits.rules import read_directory


def test_callers_with_the_same_facts_are_the_same_caller_and_share_their_plan() -> None:
    desk = a_desk()
    one, other = a_user(), a_user()

    assert (one == other, hash(one) == hash(other), one is other) == (True, True, False)
    assert a_user("bob") != one
    assert len({one, other}) == 1
    assert desk.evaluator.limiter.rulebook.build_core_charge(one) == desk.evaluator.limiter.rulebook.build_core_charge(
        other
    )


@pytest.mark.parametrize("query", ["access_token=x", "page=2&client_secret=y", "access_token"])
def test_credentials_in_the_query_are_refused_though_the_caller_is_known(query: str) -> None:
    desk = a_desk()
    known = ask(desk, Caller(token=ADA, query="page=2"))

    assert (known.status, ask(desk, Caller(token=ADA, query=query)).status) == (200, 401)


def test_a_revoked_token_is_refused_from_the_next_request_on() -> None:
    desk = a_desk()
    before = ask(desk, Caller(token=ADA)).status
    desk.caller_resolver.set_directory(
        read_directory(DIRECTORY.replace('name = "laptop",', 'name = "laptop", revoked = true,'))
    )

    assert (before, ask(desk, Caller(token=ADA)).status) == (200, 401)


def test_a_token_that_expires_is_refused_from_that_moment_on() -> None:
    world = MovingWorld()
    desk = a_desk(world=world)
    now_s = world.now_ns() // 1_000_000_000
    moment = datetime.datetime.fromtimestamp(now_s + 10, tz=datetime.UTC).isoformat()
    desk.caller_resolver.set_directory(
        read_directory(f'[[user]]\nlogin = "ada"\ntokens = [{{ sha256 = "{hash_secret(ADA)}", expires = {moment} }}]\n')
    )
    before = ask(desk, Caller(token=ADA)).status
    world.advance(11)

    assert (before, ask(desk, Caller(token=ADA)).status) == (200, 401)


def test_behind_proxies_each_address_is_a_caller_of_its_own() -> None:
    desk = a_desk(settings=LimiterSettings(proxies=read_proxies(hops=1)))

    told = [
        ask(desk, Caller(headers=[("x-forwarded-for", address)])).headers["x-ratelimit-used"]
        for address in ("203.0.113.1", "203.0.113.2", "203.0.113.1")
    ]

    assert told == ["1", "1", "2"]


def test_addresses_in_the_log_of_decisions_can_be_cut(tmp_path: Path) -> None:
    desk = a_desk(folder=tmp_path, settings=LimiterSettings(decisions=DecisionLogSettings(cuts_addresses=True)))
    heard = ask(desk, Caller(token=ADA))

    found = desk.decision_log.find(heard.headers["x-github-request-id"])

    assert found is not None
    assert found["address"] == "192.0.2.0"


def test_a_hundred_wrong_credentials_of_one_address_end_in_a_refusal_without_asking_who() -> None:
    desk = a_desk()

    said = [ask(desk, Caller(token=f"wrong{n}")).status for n in range(100)]

    assert (said[0], said[-1], said.count(401)) == (401, 403, 60)
    assert ask(desk, Caller(token=ADA)).status == 200


def test_what_callers_choose_themselves_fills_no_memory() -> None:
    desk = a_desk(settings=LimiterSettings(proxies=read_proxies(hops=1)))
    long = ", ".join(["203.0.113.1"] * 500)

    heard = [ask(desk, Caller("/" + "x" * 9_000, headers=[("x-forwarded-for", long)])) for _ in range(2)]

    assert [h.headers["x-ratelimit-used"] for h in heard] == ["1", "2"]
    assert len(desk.caller_resolver) == 0
    assert [len(noted.path) for noted in desk.decision_log.list_recent()] == [1_024, 1_024]


def journal_of(folder: Path, *, one_in: int = 1, bytes_most: int = 1 << 20) -> DecisionService:
    decisions = DecisionLogSettings(one_in=one_in, bytes_most=bytes_most, kept_ms=24 * 3_600_000)
    return a_desk(
        '[[rule]]\nname = "core"\nceiling = 40\n',
        world=MovingWorld(),
        settings=LimiterSettings(decisions=decisions),
        folder=folder,
    )


def written(desk: DecisionService, folder: Path) -> list[str]:
    asyncio.run(desk.decision_log.write(desk.now_ms()))
    return [line for name in ("decisions.1.jsonl", "decisions.jsonl") if (folder / name).exists()
            for line in (folder / name).read_text().splitlines()]  # fmt: skip


def test_8_the_log_has_all_refusals_and_one_in_so_many_of_those_admitted(tmp_path: Path) -> None:
    desk = journal_of(tmp_path, one_in=10)
    for _ in range(45):
        ask(desk, Caller(token=ADA))

    verdicts = [msgspec.json.decode(line)["verdict"] for line in written(desk, tmp_path)]

    assert (verdicts.count("admitted"), verdicts.count("primary")) == (4, 5)


def test_what_memory_keeps_of_a_decision_tells_the_same_as_the_log(tmp_path: Path) -> None:
    desk = journal_of(tmp_path)
    for path in ("/one", "/two", "/" + "x" * 2_000):
        for _ in range(14):
            ask(desk, Caller(path, token=ADA))

    lines = [msgspec.json.decode(line) for line in written(desk, tmp_path)]

    assert [line["verdict"] for line in lines] == ["admitted"] * 40 + ["primary"] * 2
    assert [desk.decision_log.find(line["request_id"]) for line in lines] == lines


def test_8_decisions_that_the_disk_does_not_take_are_counted_as_lost(tmp_path: Path) -> None:
    desk = journal_of(tmp_path)
    (tmp_path / "decisions.jsonl").mkdir()
    for _ in range(3):
        ask(desk, Caller(token=ADA))

    with pytest.raises(IsADirectoryError):
        written(desk, tmp_path)

    assert desk.decision_log.dropped_decisions == 3


def test_8_the_log_stays_within_its_size_and_its_age(tmp_path: Path) -> None:
    desk = journal_of(tmp_path, bytes_most=20_000)
    for _ in range(20):
        for _ in range(5):
            ask(desk, Caller(token=ADA))
        written(desk, tmp_path)
    size = sum(file.stat().st_size for file in tmp_path.glob("decisions*.jsonl"))
    assert isinstance(desk.world, MovingWorld)
    for _ in range(2):
        desk.world.advance(13 * 3_600)
        ask(desk, Caller("/later", token=ADA))
        lines = written(desk, tmp_path)

    assert (
        10_000 < size < 40_000
    )  # A piece that is written at once may go beyond the half at which a file is put aside.
    assert {msgspec.json.decode(line)["path"] for line in lines} == {"/later"}
