"""What operators see and do: every command, typed at a gateway that runs."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner

from tests.limits.decision_services import ADA, INSTALLATION, OAUTH
from tests.limits.gateway.running_gateway import RunningGateway, run_scenario
from wharf.cli.root import root
from wharf.limits.admin.actions import ActionError, OperatorActions
from wharf.limits.admin.server import AdminServer
from wharf.limits.config.settings_file import read_settings
from wharf.limits.rules import InvalidFile

T = TypeVar("T")
ADA_SENDS = f"Authorization: token {ADA}"
TWO_AN_HOUR = '[[rule]]\nname = "core"\nceiling = 2\n'


class Desk:
    """An operator at the terminal of the machine on which a gateway runs."""

    def __init__(self, place: RunningGateway, folder: Path) -> None:
        self.place = place
        self.folder = folder
        self.acts: OperatorActions
        self.port = 0

    async def type(self, *words: str, fails: bool = False) -> str:
        return await self.type_at(str(self.folder / "data" / "admin.sock"), *words, fails=fails)

    async def type_at(self, where: str, *words: str, fails: bool = False) -> str:
        command = ["limits", *words, "--admin-address", where]
        done = await asyncio.to_thread(CliRunner().invoke, root, command)
        assert (done.exit_code != 0) is fails, done.output
        return done.output

    async def json(self, *words: str) -> Any:
        return json.loads(await self.type(*words, "--json"))

    async def ask(self, *headers: str, target: str = "/things") -> int:
        return (await self.place.request(target, *headers)).status

    def audited(self) -> list[str]:
        lines = (self.folder / "data" / "audit.jsonl").read_text().splitlines()
        return [f"{entry['act']} by {entry['by']}" for entry in map(json.loads, lines)]


def operate(folder: Path, scenario: Callable[[Desk], Awaitable[T]], *, rules: str = TWO_AN_HOUR, more: str = "") -> T:
    async def whole(place: RunningGateway) -> T:
        admin = AdminServer(place.gateway.limits, place.decision_service.world, place.gateway)
        await admin.open()
        desk = Desk(place, folder)
        desk.acts, desk.port = admin.actions, admin.port
        try:
            return await scenario(desk)
        finally:
            await admin.close()

    return run_scenario(folder, whole, rules=rules, more=more)


def test_why_tells_each_limit_of_a_refusal_with_its_counter_and_its_line(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> tuple[str, Any]:
        wire = await desk.place.connect()
        heard = [await wire.request("/things", ADA_SENDS) for _ in range(3)][-1]
        request_id = heard.headers["x-github-request-id"]
        return await desk.type("why", request_id), await desk.json("why", request_id)

    said, told = operate(tmp_path, scenario)

    assert "refused (primary) by core; retry after 3600 s" in said
    core = told["limits"][0]
    assert (core["rule"], core["before"], core["after"], core["ceiling"], core["is_hit"]) == ("core", 2, 2, 2, True)
    assert (Path(core["file"]).name, core["line"]) == ("rules.toml", 1)


def test_why_of_an_admitted_request_and_of_one_that_nobody_knows(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> tuple[str, str]:
        heard = await desk.place.request("/things", ADA_SENDS)
        request_id = heard.headers["x-github-request-id"]
        return await desk.type("why", request_id), await desk.type("why", "A:B", fails=True)

    admitted, unknown = operate(tmp_path, scenario)

    assert "GET /things of user:ada (personal_token, 127.0.0.1)\nadmitted" in admitted
    assert "no decision with the id A:B is kept" in unknown


def test_why_finds_refusals_in_the_file_when_memory_has_forgotten_and_no_token_is_there(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> str:
        for _ in range(3):
            heard = await desk.place.request("/things", ADA_SENDS)
        journal = desk.place.decision_service.decision_log
        await journal.write(desk.place.decision_service.now_ms())
        journal._recent.clear()
        return (await desk.json("why", heard.headers["x-github-request-id"]))["verdict"]  # type: ignore[no-any-return] # JSON.

    assert operate(tmp_path, scenario) == "primary"
    assert ADA not in (tmp_path / "data" / "decisions.jsonl").read_text()


def test_top_names_who_asks_most_and_who_is_refused(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> Any:
        for _ in range(3):
            await desk.ask(ADA_SENDS)
        await desk.ask(f"Authorization: token {INSTALLATION}")
        assert "user:ada" in await desk.type("top")
        return await desk.json("top")

    assert operate(tmp_path, scenario) == [
        {"caller": "user:ada", "requests": 3, "refused": 1, "busiest": "GET /things"},
        {"caller": "installation:71", "requests": 1, "refused": 0, "busiest": "GET /things"},
    ]


def test_show_tells_the_counters_of_a_caller_seen_or_not(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> tuple[Any, Any, str]:
        await desk.ask(ADA_SENDS)
        assert "Limits in use" in await desk.type("show", "ada")
        return (
            await desk.json("show", "ada"),
            await desk.json("show", "repository:acme/site"),
            await desk.type("show", "bob", fails=True),
        )

    ada, repository, unknown = operate(tmp_path, scenario)

    used = {limit["rule"]: limit["used"] for limit in ada["limits"]}
    assert (ada["caller"], used["core"], used["points"], used["concurrent"]) == ("user:ada", 1, 1, 0)
    assert repository["case"] == "workflow"
    assert "bob was not seen and is not in the directory" in unknown


ENTERPRISE = """
[[organization]]
login = "big"
tier = "enterprise"
[[app]]
id = 9
owner = "big"
client_id = "cid9"
client_secret_sha256 = "a948904f2f0f479b8f8197694b30184b0d2ed1c1cd2a1ec0fb85d299a192a447"
[[repository]]
name = "big/site"
"""


def test_show_tells_of_a_caller_who_was_not_seen_what_the_directory_knows(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> list[tuple[str, str | None]]:
        (tmp_path / "people.toml").write_text((tmp_path / "people.toml").read_text() + ENTERPRISE)
        await desk.type("reload")
        found = [await desk.json("show", name) for name in ("app:9", "repository:big/site", "user:ada")]
        assert "banned" not in await desk.type("show", "user:ada")
        return [(each["case"], each["ban_subject"]) for each in found]

    assert operate(tmp_path, scenario) == [
        ("client_enterprise", "app:9"),
        ("workflow_enterprise", None),
        ("user", None),
    ]


def test_show_tells_until_when_a_grant_holds(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> str:
        await desk.type("grant", "ada", "--amount", "3", "--until", "2126-01-31T12:00:00Z", "--reason", "a move")
        return await desk.type("show", "ada")

    assert "grant: 3 more of core until 2126-01-31 12:00:00Z, by " in operate(tmp_path, scenario)


def test_a_grant_holds_at_once_ends_by_itself_and_is_audited(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> list[int]:
        said = [await desk.ask(ADA_SENDS) for _ in range(3)]
        await desk.type("grant", "ada", "--amount", "2", "--duration", "1h", "--reason", "a migration")
        said += [await desk.ask(ADA_SENDS) for _ in range(3)]
        grants = desk.place.decision_service.overrides.grant_file
        grants.grants = [type(grant)(**{**_facts(grant), "until_ms": 1}) for grant in grants.grants]
        await desk.place.decision_service.run_maintenance(should_renew=False)
        return said

    def _facts(grant: Any) -> dict[str, Any]:
        return {name: getattr(grant, name) for name in grant.__struct_fields__}

    assert operate(tmp_path, scenario) == [200, 200, 403, 200, 200, 403]
    audited = [json.loads(line) for line in (tmp_path / "data" / "audit.jsonl").read_text().splitlines()]
    assert [entry["act"] for entry in audited] == ["grant", "grant ended"]
    assert (audited[0]["reason"], audited[0]["owner"], audited[1]["by"]) == ("a migration", "user:ada", "time")


def test_what_an_operator_did_is_logged_with_its_values_as_fields(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(desk: Desk) -> str:
        return await desk.type("grant", "ada", "--amount", "3", "--duration", "1h", "--reason", "a move")

    operate(tmp_path, scenario)

    (logged,) = [record for record in caplog.records if "grant" in record.getMessage()]
    fields = vars(logged)
    assert "{" not in logged.getMessage()
    assert (fields["owner"], fields["amount"], fields["reason"]) == ("user:ada", 3, "a move")


def test_a_grant_ends_at_a_moment_that_is_named(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> tuple[str, list[int], list[str]]:
        grant = ("grant", "ada", "--resource", "core", "--amount", "3")
        told = await desk.type(*grant, "--until", "2126-01-31T12:00:00Z")
        kept = [one.until_ms for one in desk.place.decision_service.overrides.grant_file.grants]
        wrong = [
            await desk.type(*grant, fails=True),
            await desk.type(*grant, "--duration", "1h", "--until", "2126-01-31T12:00:00Z", fails=True),
            await desk.type(*grant, "--until", "2126-01-31T12:00:00", fails=True),
            await desk.type(*grant, "--until", "2020-01-31T12:00:00Z", fails=True),
        ]
        return told, kept, wrong

    told, kept, wrong = operate(tmp_path, scenario)

    assert (told, kept) == ("granted user:ada 3 more of core until 2126-01-31T12:00:00Z\n", [4925534400000])
    assert ["either --duration or --until" in said for said in wrong] == [True, True, False, False]
    assert "expected a time with its UTC offset" in wrong[2]
    assert "ends later than now" in wrong[3]


def test_grants_are_kept_over_a_restart(tmp_path: Path) -> None:
    async def give(desk: Desk) -> None:
        await desk.type("grant", "ada", "--amount", "3", "--duration", "1h")

    async def ask(desk: Desk) -> str:
        return (await desk.place.request("/things", ADA_SENDS)).headers["x-ratelimit-limit"]

    operate(tmp_path, give)

    assert operate(tmp_path, ask) == "5"


def test_a_grant_can_be_revoked_and_must_be_of_a_resource_that_there_is(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> tuple[str, str, str]:
        await desk.type("grant", "ada", "--amount", "3", "--duration", "1h")
        return (
            await desk.type("revoke", "ada"),
            await desk.type("revoke", "ada", fails=True),
            await desk.type("grant", "ada", "--amount", "3", "--duration", "1h", "--resource", "cor", fails=True),
        )

    revoked, again, unknown = operate(tmp_path, scenario)

    assert revoked == "revoked from user:ada: 3 more of core\n"
    assert "has no such grant" in again
    assert "'cor' is no resource of the rules" in unknown


def test_reset_starts_counters_again(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> list[int]:
        said = [await desk.ask(ADA_SENDS) for _ in range(3)]
        await desk.type("reset", "ada", "--rule", "core")
        return [*said, await desk.ask(ADA_SENDS)]

    assert operate(tmp_path, scenario) == [200, 200, 403, 200]


def test_a_ban_refuses_and_unban_ends_it_and_a_user_is_never_banned(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> tuple[list[int], str, Any]:
        subject = (await _seen(desk))["ban_subject"]
        await desk.type("ban", subject, "--duration", "1h", "--reason", "noise")
        said = [await desk.ask(ADA_SENDS), await desk.ask(f"Authorization: token {OAUTH}")]
        shown = await desk.json("show", "ada")
        await desk.type("unban", subject)
        return [*said, await desk.ask(ADA_SENDS)], await desk.type("ban", "user:ada", fails=True), shown

    async def _seen(desk: Desk) -> Any:
        await desk.ask(ADA_SENDS)
        return await desk.json("show", "ada")

    said, refused, _ = operate(tmp_path, scenario, rules="")

    assert said == [403, 200, 200]
    assert "never a whole user" in refused


def test_limits_are_off_for_a_time_and_on_again(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> tuple[list[int], list[str]]:
        said = [await desk.ask(ADA_SENDS) for _ in range(3)]
        await desk.type("disable", "--duration", "10m", "--reason", "an incident")
        said += [await desk.ask(ADA_SENDS), await desk.ask(ADA_SENDS, target="/rate_limit")]
        await desk.type("on")
        return [*said, await desk.ask(ADA_SENDS)], [act.partition(" by ")[0] for act in desk.audited()]

    assert operate(tmp_path, scenario) == ([200, 200, 403, 200, 404, 403], ["limits off", "limits on"])


def test_what_is_exported_can_be_put_in_elsewhere(tmp_path: Path) -> None:
    async def leave(desk: Desk) -> str:
        await desk.ask(ADA_SENDS)
        await desk.type("grant", "ada", "--amount", "3", "--duration", "1h")
        return await desk.type("export")

    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "export.json").write_text(operate(tmp_path / "one", leave))

    async def arrive(desk: Desk) -> dict[str, str]:
        await desk.type("import", str(tmp_path / "export.json"))
        return (await desk.place.request("/things", ADA_SENDS)).headers

    headers = operate(tmp_path / "two", arrive)

    assert (headers["x-ratelimit-limit"], headers["x-ratelimit-used"]) == ("5", "2")


def test_a_drill_needs_a_store_that_could_be_lost(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> str:
        with pytest.raises(ActionError):
            desk.acts.start_drill("store-down", for_ms=1_000, by="me", reason="")
        return await desk.type("simulate-outage", "store", fails=True)

    assert "there is no store that could be lost" in operate(tmp_path, scenario)


def test_rules_are_shown_with_their_lines_and_a_file_that_is_wrong_is_told_on_reload(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> tuple[str, str]:
        shown = await desk.type("rules")
        (tmp_path / "rules.toml").write_text("[[rule]]\nname = 3\n")
        return shown, await desk.type("reload")

    shown, reloaded = operate(tmp_path, scenario)

    assert "rules.toml:1" in shown
    assert "rejected; the previous version stays in force" in reloaded


def test_metrics_have_labels_by_rule_and_outcome_and_none_by_caller(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> str:
        for _ in range(3):
            await desk.ask(ADA_SENDS)
        return await desk.type("metrics")

    told = operate(tmp_path, scenario)

    assert 'wharf_limits_rule_requests_total{rule="core",outcome="refused"} 1' in told
    assert 'wharf_limits_rule_requests_total{rule="core",outcome="within"} 2' in told
    assert 'wharf_limits_decisions_total{verdict="primary"} 1' in told
    assert 'wharf_limits_gateway_replies_total{status="4xx"} 1' in told
    assert "ada" not in told


def test_metrics_are_told_over_tcp_where_configured_and_nothing_else_is(tmp_path: Path) -> None:
    async def get(port: int, target: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        said = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return said

    async def whole(place: RunningGateway) -> tuple[bytes, bytes]:
        admin = AdminServer(place.gateway.limits, place.decision_service.world, place.gateway)
        await admin.open()
        try:
            return await get(admin.metrics_port, "/metrics"), await get(admin.metrics_port, "/rules")
        finally:
            await admin.close()

    metrics, rules = run_scenario(tmp_path, whole, gateway='metrics_listen = "127.0.0.1:0"')

    assert metrics.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\n")
    assert rules.startswith(b"HTTP/1.1 404 ")


def test_the_activity_of_an_organization_has_the_shape_of_insights(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> list[Any]:
        for _ in range(3):
            await desk.ask(ADA_SENDS)
        await desk.ask(f"Authorization: token {INSTALLATION}", target="/repos/acme/site/issues/7")
        await desk.ask()  # Nobody of the organization.
        since = ("--since", "2020-01-01T00:00:00Z")
        return [
            json.loads(await desk.type("activity", "acme", "--group-by", by, *since))
            for by in ("summary", "route", "subject", "time")
        ]

    summary, routes, subjects, times = operate(tmp_path, scenario)

    assert summary == {
        "total_request_count": 4,
        "rate_limited_request_count": 1,
        "secondary_limited_request_count": 0,
    }
    assert [(r["http_method"], r["api_route"], r["total_request_count"]) for r in routes] == [
        ("GET", "/things", 3),
        ("GET", "/repos/acme/site/issues/*", 1),
    ]
    assert [(s["subject_type"], s["subject_name"]) for s in subjects] == [("user", "ada"), ("installation", "71")]
    assert sum(t["total_request_count"] for t in times) == 4


def test_activity_is_asked_since_a_moment_or_for_a_length_and_other_words_are_told(tmp_path: Path) -> None:
    async def scenario(desk: Desk) -> tuple[Any, str]:
        await desk.ask(ADA_SENDS)
        lately = json.loads(await desk.type("activity", "acme", "--since", "1h"))
        return lately, await desk.type("activity", "acme", "--since", "tomorrow", fails=True)

    lately, refused = operate(tmp_path, scenario)

    assert lately["total_request_count"] == 1
    assert 'expected a time such as 2027-01-31T12:00:00Z or a duration such as 1h, got "tomorrow"' in refused
    assert "--since" in refused


def test_a_command_without_a_limiter_says_what_to_do(tmp_path: Path) -> None:
    done = CliRunner().invoke(root, ["limits", "top", "--admin-address", str(tmp_path / "none.sock")])

    assert "no limiter listens at" in done.output


def test_only_its_owner_can_connect_to_the_socket(tmp_path: Path) -> None:
    async def scenario(_: Desk) -> int:
        return (tmp_path / "data" / "admin.sock").stat().st_mode & 0o777

    assert operate(tmp_path, scenario) == 0o600


@pytest.mark.parametrize(
    ("rules", "code", "says"),
    [
        (TWO_AN_HOUR, 0, "0 errors"),
        ("[[rule]]\nname = 3\n", 1, "rules.toml:2:1"),
        ('[[rule]]\nname = "odd"\ncounts = "points"\nwindow = "1m"\nceiling = 3\n', 1, "error: odd"),
    ],
)
def test_lint_ends_with_1_when_a_limiter_would_refuse_the_rules(
    tmp_path: Path, rules: str, code: int, says: str
) -> None:
    (tmp_path / "rules.toml").write_text(rules)

    done = CliRunner().invoke(root, ["limits", "lint", str(tmp_path / "rules.toml")])

    assert (done.exit_code, says in done.output) == (code, True)


def test_over_a_port_the_token_is_needed_and_does_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, wrong = tmp_path / "token", tmp_path / "wrong"
    token.write_text("a-token-of-twenty-signs-or-more\n")
    wrong.write_text("another-token-of-twenty-signs\n")
    token.chmod(0o600)

    async def scenario(desk: Desk) -> tuple[str, list[str]]:
        await desk.ask(ADA_SENDS)
        refused = []
        for file in ("", str(wrong), str(tmp_path / "none")):
            monkeypatch.setenv("WHARF_LIMITS_TOKEN_FILE", file)
            refused.append(await desk.type_at(f"http://127.0.0.1:{desk.port}", "top", fails=True))
        monkeypatch.setenv("WHARF_LIMITS_TOKEN_FILE", str(token))
        return await desk.type_at(f"http://127.0.0.1:{desk.port}", "top"), refused

    more = f'admin_listen = "127.0.0.1:0"\nadmin_token_file = "{token}"\n'
    top, (without, with_wrong, with_none) = operate(tmp_path, scenario, more=more)

    assert "user:ada" in top
    assert "requires the limiter's token: set WHARF_LIMITS_TOKEN_FILE" in without
    assert "this needs the limiter's token" in with_wrong
    assert "cannot read" in with_none


@pytest.mark.parametrize(
    ("listen", "mode", "text", "sentence"),
    [
        ("0.0.0.0:9000", 0o600, "a-token-of-twenty-signs", "is not a local address"),
        ("127.0.0.1:9000", 0o644, "a-token-of-twenty-signs", "other users can access"),
        ("127.0.0.1:9000", 0o600, "short", "does not hold a valid token"),
    ],
)
def test_a_port_that_others_could_use_is_refused(
    tmp_path: Path, listen: str, mode: int, text: str, sentence: str
) -> None:
    (tmp_path / "token").write_text(text)
    (tmp_path / "token").chmod(mode)

    with pytest.raises(InvalidFile, match=sentence):
        read_settings(f'admin_listen = "{listen}"\nadmin_token_file = "token"\n', folder=tmp_path)
