"""The commands of operators against a running gateway: their output and their effects."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import pytest
from click.testing import CliRunner

from tests.limits.decision_services import ADA, INSTALLATION, OAUTH
from tests.limits.gateway.running_gateway import RunningGateway, run_scenario
from wharf.cli.common.terminal import render_for_terminal
from wharf.cli.limits.group import render_rules
from wharf.cli.root import root
from wharf.limits.admin.actions import OperatorActions
from wharf.limits.admin.errors import ActionError
from wharf.limits.admin.server import AdminServer
from wharf.limits.config.settings_file import read_settings
from wharf.limits.rules import InvalidFile

T = TypeVar("T")
ADA_HEADER = f"Authorization: token {ADA}"
TWO_AN_HOUR = '[[rule]]\nname = "core"\nceiling = 2\n'


class Operator:
    """An operator on the machine of a running gateway."""

    def __init__(self, running: RunningGateway, folder: Path) -> None:
        self.running = running
        self.folder = folder
        self.actions: OperatorActions
        self.port = 0

    async def run(self, *words: str, fails: bool = False) -> str:
        return await self.run_at(str(self.folder / "data" / "admin.sock"), *words, fails=fails)

    async def run_at(self, address: str, *words: str, fails: bool = False) -> str:
        command = ["limits", *words, "--admin-address", address]
        result = await asyncio.to_thread(CliRunner().invoke, root, command)
        assert (result.exit_code != 0) is fails, result.output
        return result.output

    async def run_json(self, *words: str) -> Any:
        return json.loads(await self.run(*words, "--json"))

    async def send(self, *headers: str, target: str = "/things") -> int:
        """Send a request as a caller. Return the status of the reply."""
        return (await self.running.request(target, *headers)).status

    def read_audit_log(self) -> list[str]:
        lines = (self.folder / "data" / "audit.jsonl").read_text().splitlines()
        return [f"{entry['act']} by {entry['by']}" for entry in map(json.loads, lines)]


def run_as_operator(
    folder: Path, scenario: Callable[[Operator], Awaitable[T]], *, rules: str = TWO_AN_HOUR, more: str = ""
) -> T:
    """Run a scenario with an operator at a running gateway. `more` is appended to its settings."""

    async def run_with_admin(running: RunningGateway) -> T:
        admin = AdminServer(running.gateway.limits, running.decision_service.world, running.gateway)
        await admin.open()
        operator = Operator(running, folder)
        operator.actions, operator.port = admin.actions, admin.port
        try:
            return await scenario(operator)
        finally:
            await admin.close()

    return run_scenario(folder, run_with_admin, rules=rules, more=more)


def test_explain_lists_each_limit_of_a_refusal_with_its_count_and_its_line(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> tuple[str, Any]:
        caller = await operator.running.connect()
        reply = [await caller.request("/things", ADA_HEADER) for _ in range(3)][-1]
        request_id = reply.headers["x-github-request-id"]
        return await operator.run("why", request_id), await operator.run_json("why", request_id)

    text, decision = run_as_operator(tmp_path, scenario)

    assert "refused (primary) by core; retry after 3600 s" in text
    core = decision["limits"][0]
    assert (core["rule"], core["before"], core["after"], core["ceiling"], core["is_hit"]) == ("core", 2, 2, 2, True)
    assert (Path(core["file"]).name, core["line"]) == ("rules.toml", 1)


def test_explain_describes_admitted_requests_and_rejects_unknown_ids(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> tuple[str, str]:
        reply = await operator.running.request("/things", ADA_HEADER)
        request_id = reply.headers["x-github-request-id"]
        return await operator.run("why", request_id), await operator.run("why", "A:B", fails=True)

    admitted, unknown = run_as_operator(tmp_path, scenario)

    assert "GET /things of user:ada (personal_token, 127.0.0.1)\nadmitted" in admitted
    assert "decision A:B not found" in unknown


def test_explain_says_that_a_limit_in_shadow_mode_would_refuse_a_request(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> str:
        for _ in range(3):
            reply = await operator.running.request("/things", ADA_HEADER)
        return await operator.run("explain", reply.headers["x-github-request-id"])

    text = run_as_operator(tmp_path, scenario, rules=f"{TWO_AN_HOUR}shadow = true\n")

    assert "\nadmitted (shadow mode: core would refuse)\n" in text


def test_explain_finds_refusals_in_the_log_file_which_holds_no_token(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> str:
        for _ in range(3):
            reply = await operator.running.request("/things", ADA_HEADER)
        decision_log = operator.running.decision_service.decision_log
        await decision_log.write(operator.running.decision_service.now_ms())
        decision_log._recent.clear()
        return (await operator.run_json("why", reply.headers["x-github-request-id"]))["verdict"]  # type: ignore[no-any-return] # JSON.

    assert run_as_operator(tmp_path, scenario) == "primary"
    assert ADA not in (tmp_path / "data" / "decisions.jsonl").read_text()


def test_top_lists_the_callers_with_most_requests_and_their_refusals(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> Any:
        for _ in range(3):
            await operator.send(ADA_HEADER)
        await operator.send(f"Authorization: token {INSTALLATION}")
        assert "user:ada" in await operator.run("top")
        return await operator.run_json("top")

    assert run_as_operator(tmp_path, scenario) == [
        {"caller": "user:ada", "requests": 3, "refused": 1, "would_refuse": 0, "busiest": "GET /things"},
        {"caller": "installation:71", "requests": 1, "refused": 0, "would_refuse": 0, "busiest": "GET /things"},
    ]


def test_top_counts_the_requests_that_shadow_mode_lets_pass(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> Any:
        assert [await operator.send(ADA_HEADER) for _ in range(3)] == [200, 200, 200]
        return await operator.run_json("top")

    assert run_as_operator(tmp_path, scenario, rules=f"{TWO_AN_HOUR}shadow = true\n") == [
        {"caller": "user:ada", "requests": 3, "refused": 0, "would_refuse": 1, "busiest": "GET /things"},
    ]


def test_show_lists_the_counters_of_a_caller_also_before_its_first_request(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> tuple[Any, Any, str]:
        await operator.send(ADA_HEADER)
        assert "Limits in use" in await operator.run("show", "ada")
        return (
            await operator.run_json("show", "ada"),
            await operator.run_json("show", "repository:acme/site"),
            await operator.run("show", "bob", fails=True),
        )

    ada, repository, unknown = run_as_operator(tmp_path, scenario)

    used = {limit["rule"]: limit["used"] for limit in ada["limits"]}
    assert (ada["caller"], used["core"], used["points"], used["concurrent"]) == ("user:ada", 1, 1, 0)
    assert repository["case"] == "workflow"
    assert "caller 'bob' not found: this process has received no request of it since it started" in unknown


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


def test_show_describes_a_caller_without_requests_by_the_directory(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> list[tuple[str, str | None]]:
        (tmp_path / "people.toml").write_text((tmp_path / "people.toml").read_text() + ENTERPRISE)
        await operator.run("reload")
        callers = [await operator.run_json("show", name) for name in ("app:9", "repository:big/site", "user:ada")]
        assert "banned" not in await operator.run("show", "user:ada")
        return [(caller["case"], caller["ban_subject"]) for caller in callers]

    assert run_as_operator(tmp_path, scenario) == [
        ("client_enterprise", "app:9"),
        ("workflow_enterprise", None),
        ("user", None),
    ]


def test_show_names_the_end_of_a_grant(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> str:
        await operator.run("grant", "ada", "--amount", "3", "--until", "2126-01-31T12:00:00Z", "--reason", "a move")
        return await operator.run("show", "ada")

    assert "grant: 3 more of core until 2126-01-31 12:00:00Z, by " in run_as_operator(tmp_path, scenario)


def test_a_grant_applies_at_once_ends_automatically_and_is_audited(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> list[int]:
        statuses = [await operator.send(ADA_HEADER) for _ in range(3)]
        await operator.run("grant", "ada", "--amount", "2", "--duration", "1h", "--reason", "a migration")
        statuses += [await operator.send(ADA_HEADER) for _ in range(3)]
        grants = operator.running.decision_service.overrides.grant_file
        grants.entries = [type(grant)(**{**_facts(grant), "until_ms": 1}) for grant in grants.entries]
        await operator.running.decision_service.run_maintenance(should_renew=False)
        return statuses

    def _facts(grant: Any) -> dict[str, Any]:
        return {name: getattr(grant, name) for name in grant.__struct_fields__}

    assert run_as_operator(tmp_path, scenario) == [200, 200, 403, 200, 200, 403]
    entries = [json.loads(line) for line in (tmp_path / "data" / "audit.jsonl").read_text().splitlines()]
    assert [entry["act"] for entry in entries] == ["grant", "grant ended"]
    assert (entries[0]["reason"], entries[0]["owner"], entries[1]["by"]) == ("a migration", "user:ada", "time")


def test_actions_of_operators_are_logged_with_their_values_as_fields(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(operator: Operator) -> str:
        return await operator.run("grant", "ada", "--amount", "3", "--duration", "1h", "--reason", "a move")

    run_as_operator(tmp_path, scenario)

    (record,) = [entry for entry in caplog.records if entry.getMessage() == "limits changed"]
    fields = vars(record)
    assert (fields["action"], fields["owner"], fields["amount"], fields["reason"]) == ("grant", "user:ada", 3, "a move")


def test_a_grant_can_end_at_a_given_time(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> tuple[str, list[int], list[str]]:
        command = ("grant", "ada", "--resource", "core", "--amount", "3")
        output = await operator.run(*command, "--until", "2126-01-31T12:00:00Z")
        ends_ms = [grant.until_ms for grant in operator.running.decision_service.overrides.grant_file.entries]
        errors = [
            await operator.run(*command, fails=True),
            await operator.run(*command, "--duration", "1h", "--until", "2126-01-31T12:00:00Z", fails=True),
            await operator.run(*command, "--until", "2126-01-31T12:00:00", fails=True),
            await operator.run(*command, "--until", "2020-01-31T12:00:00Z", fails=True),
        ]
        return output, ends_ms, errors

    output, ends_ms, errors = run_as_operator(tmp_path, scenario)

    assert (output, ends_ms) == ("granted user:ada 3 more of core until 2126-01-31T12:00:00Z\n", [4925534400000])
    assert ["either --duration or --until" in error for error in errors] == [True, True, False, False]
    assert "expected a time with its UTC offset" in errors[2]
    assert "the end must be in the future" in errors[3]


def test_grants_survive_a_restart(tmp_path: Path) -> None:
    async def grant(operator: Operator) -> None:
        await operator.run("grant", "ada", "--amount", "3", "--duration", "1h")

    async def read_limit(operator: Operator) -> str:
        return (await operator.running.request("/things", ADA_HEADER)).headers["x-ratelimit-limit"]

    run_as_operator(tmp_path, grant)

    assert run_as_operator(tmp_path, read_limit) == "5"


def test_a_grant_can_be_revoked_and_must_name_an_existing_resource(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> tuple[str, str, str]:
        await operator.run("grant", "ada", "--amount", "3", "--duration", "1h")
        return (
            await operator.run("revoke", "ada"),
            await operator.run("revoke", "ada", fails=True),
            await operator.run("grant", "ada", "--amount", "3", "--duration", "1h", "--resource", "cor", fails=True),
        )

    revoked, repeated, unknown = run_as_operator(tmp_path, scenario)

    assert revoked == "revoked from user:ada: 3 more of core\n"
    assert "has no such grant" in repeated
    assert "'cor' is not a resource of the rules" in unknown


def test_reset_sets_counters_to_0(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> list[int]:
        statuses = [await operator.send(ADA_HEADER) for _ in range(3)]
        await operator.run("reset", "ada", "--rule", "core")
        return [*statuses, await operator.send(ADA_HEADER)]

    assert run_as_operator(tmp_path, scenario) == [200, 200, 403, 200]


def test_a_banned_token_is_refused_until_unban(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> list[int]:
        subject = (await _describe_ada(operator))["ban_subject"]
        await operator.run("ban", subject, "--duration", "1h", "--reason", "noise")
        statuses = [await operator.send(ADA_HEADER), await operator.send(f"Authorization: token {OAUTH}")]
        lifted = await operator.run_json("unban", subject)
        assert lifted["subject"] == subject
        return [*statuses, await operator.send(ADA_HEADER)]

    async def _describe_ada(operator: Operator) -> Any:
        await operator.send(ADA_HEADER)
        return await operator.run_json("show", "ada")

    assert run_as_operator(tmp_path, scenario, rules="") == [403, 200, 200]


def test_the_ban_of_a_user_refuses_all_its_credentials_until_unban(tmp_path: Path) -> None:
    headers = (ADA_HEADER, f"Authorization: token {OAUTH}", f"Authorization: token {INSTALLATION}")

    async def scenario(operator: Operator) -> tuple[list[int], str, str, list[int]]:
        await operator.run("ban", "user:ada", "--duration", "1h")
        banned = [await operator.send(header) for header in headers]
        description = await operator.run("show", "user:ada")
        await operator.run("unban", "user:ada")
        return (
            banned,
            description,
            await operator.run("show", "user:ada"),
            [await operator.send(header) for header in headers],
        )

    banned, description, later, unbanned = run_as_operator(tmp_path, scenario, rules="")

    assert (banned, unbanned) == ([403, 403, 200], [200, 200, 200])
    assert ("Banned as" in description, "user:ada" in description, "Banned as" in later) == (True, True, False)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "An operator has blocked you until "),
        (("--message", "Write to ops@example.com"), " UTC. Write to ops@example.com. Wait "),
    ],
)
@pytest.mark.parametrize("subject", ["user:ada", "token"])
def test_the_refusal_of_a_ban_says_that_an_operator_made_it(
    tmp_path: Path, words: tuple[str, ...], text: str, subject: str
) -> None:
    async def scenario(operator: Operator) -> str:
        await operator.send(ADA_HEADER)
        token = (await operator.run_json("show", "ada"))["ban_subject"]
        await operator.run("ban", token if subject == "token" else subject, "--reason", "for us only", *words)
        reply = await operator.running.request("/things", ADA_HEADER)
        return str(reply.json()["message"])

    message = run_as_operator(tmp_path, scenario, rules="")

    assert text in message
    assert "secondary rate limit" not in message
    assert "for us only" not in message


@pytest.mark.parametrize("subject", ["user:ada", "address:192.0.2.7"])
def test_unban_reports_a_caller_that_was_not_banned(tmp_path: Path, subject: str) -> None:
    async def scenario(operator: Operator) -> list[str]:
        await operator.run("ban", subject, "--duration", "1h")
        return [await operator.run("unban", subject) for _ in range(2)]

    assert run_as_operator(tmp_path, scenario, rules="") == [
        f"lifted the ban of {subject}\n",
        f"{subject} was not banned\n",
    ]


def test_the_ban_of_a_user_survives_a_restart(tmp_path: Path) -> None:
    async def ban(operator: Operator) -> str:
        return await operator.run("ban", "user:ada", "--duration", "1h")

    async def send(operator: Operator) -> int:
        return await operator.send(ADA_HEADER)

    shown = run_as_operator(tmp_path, ban, rules="")

    assert (
        shown == "banned user:ada for 1h: all requests with credentials of this user are refused, also with new ones\n"
    )
    assert run_as_operator(tmp_path, send, rules="") == 403


def test_in_shadow_mode_the_ban_of_a_user_is_logged_and_refuses_nothing(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> tuple[str, int, str]:
        shown = await operator.run("ban", "user:ada", "--duration", "1h")
        reply = await operator.running.request("/things", ADA_HEADER)
        return shown, reply.status, await operator.run("explain", reply.headers["x-github-request-id"])

    shown, status, explanation = run_as_operator(tmp_path, scenario, rules="shadow = true\n")

    assert "refuses nothing: bans are in shadow mode, because `shadow` at the top of the rules is true" in shown
    assert (status, "(shadow mode: the ban would refuse)" in explanation) == (200, True)


def test_a_user_that_the_limiter_cannot_know_is_not_banned(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> str:
        return await operator.run("ban", "user:nobody", fails=True)

    assert "the directory has no such user" in run_as_operator(tmp_path, scenario)
    assert "does not know the users of credentials" in run_as_operator(
        tmp_path, scenario, more='credentials = "opaque"\n'
    )


@pytest.mark.parametrize(
    ("rules", "subject", "expected"),
    [
        ("", "app:7", "banned app:7 for 1h: all requests with tokens of this app are refused\n"),
        (
            "",
            "address:192.0.2.7",
            "recorded a ban of address:192.0.2.7 for 1h, which refuses nothing: bans are in shadow mode, because "
            "`addresses_shadow` in `[ban]` of the rules is true\n",
        ),
        (
            "[ban]\naddresses_shadow = false\n",
            "address:192.0.2.7",
            "banned address:192.0.2.7 for 1h: requests from this address without a valid token are refused, requests with "
            "a token are not\n",
        ),
        (
            "[ban]\nshadow = true\n",
            "app:7",
            "recorded a ban of app:7 for 1h, which refuses nothing: bans are in shadow mode, because `shadow` in `[ban]` of "
            "the rules is true\n",
        ),
    ],
)
def test_a_ban_says_which_requests_it_refuses(tmp_path: Path, rules: str, subject: str, expected: str) -> None:
    async def scenario(operator: Operator) -> str:
        return await operator.run("ban", subject, "--duration", "1h")

    assert run_as_operator(tmp_path, scenario, rules=rules) == expected


def test_show_says_banned_only_of_callers_that_are_banned(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> list[str]:
        await operator.send(f"Authorization: token {INSTALLATION}")
        free = await operator.run("show", "installation:71")
        await operator.run("ban", "app:7")
        return [*free.splitlines(), *(await operator.run("show", "installation:71")).splitlines()]

    lines = [line.split() for line in run_as_operator(tmp_path, scenario) if "app:7" in line]

    assert lines == [["Ban", "subject", "app:7"], ["Banned", "as", "app:7"]]


def test_explain_and_show_name_the_end_of_a_ban_and_who_made_it(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> tuple[str, str]:
        await operator.send(ADA_HEADER)
        await operator.run("ban", "user:ada", "--duration", "1h", "--reason", "a scraper")
        reply = await operator.running.request("/things", ADA_HEADER)
        return await operator.run("explain", reply.headers["x-github-request-id"]), await operator.run("show", "ada")

    explanation, description = run_as_operator(tmp_path, scenario)

    (_, verdict, end) = explanation.splitlines()
    assert verdict.startswith("refused (banned); retry after ")
    assert re.fullmatch(r"the ban ends at \S+ \S+Z; `wharf limits show user:ada` shows who made it and why", end)
    assert re.search(r"^Banned by +\S+: a scraper$", description, re.MULTILINE)


def test_show_says_that_a_ban_and_a_limit_in_shadow_mode_refuse_nothing(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> str:
        await operator.send()
        await operator.run("ban", "address:127.0.0.1", "--duration", "1h")
        return await operator.run("show", "address:127.0.0.1")

    shown = run_as_operator(tmp_path, scenario, rules=f"{TWO_AN_HOUR}shadow = true\n")

    assert "Banned for    1h (shadow mode: nothing is refused)" in shown
    assert [line.split()[-2:] for line in shown.splitlines() if line.startswith("core ")] == [["no", "(shadow)"]]


def test_limits_can_be_switched_off_and_on_again(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> tuple[list[int], list[str]]:
        statuses = [await operator.send(ADA_HEADER) for _ in range(3)]
        await operator.run("disable", "--duration", "10m", "--reason", "an incident")
        statuses += [await operator.send(ADA_HEADER), await operator.send(ADA_HEADER, target="/rate_limit")]
        await operator.run("on")
        return [*statuses, await operator.send(ADA_HEADER)], [
            act.partition(" by ")[0] for act in operator.read_audit_log()
        ]

    assert run_as_operator(tmp_path, scenario) == ([200, 200, 403, 200, 404, 403], ["limits off", "limits on"])


def test_an_export_can_be_imported_into_another_limiter(tmp_path: Path) -> None:
    async def export(operator: Operator) -> str:
        await operator.send(ADA_HEADER)
        await operator.run("grant", "ada", "--amount", "3", "--duration", "1h")
        return await operator.run("export")

    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "export.json").write_text(run_as_operator(tmp_path / "one", export))

    async def import_and_send(operator: Operator) -> dict[str, str]:
        await operator.run("import", str(tmp_path / "export.json"))
        return (await operator.running.request("/things", ADA_HEADER)).headers

    headers = run_as_operator(tmp_path / "two", import_and_send)

    assert (headers["x-ratelimit-limit"], headers["x-ratelimit-used"]) == ("5", "2")


def test_an_outage_of_counters_in_memory_cannot_be_simulated(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> str:
        with pytest.raises(ActionError):
            operator.actions.start_drill("store-down", for_ms=1_000, by="me", reason="")
        return await operator.run("simulate-outage", "store", fails=True)

    assert "no outage to simulate: the counters are in the memory of this process" in run_as_operator(
        tmp_path, scenario
    )


def test_rules_prints_lines_of_the_file_and_reload_reports_an_invalid_file(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> tuple[str, str]:
        rules = await operator.run("rules")
        (tmp_path / "rules.toml").write_text("[[rule]]\nname = 3\n")
        return rules, await operator.run("reload", fails=True)

    rules, reloaded = run_as_operator(tmp_path, scenario)

    assert "rules.toml:1" in rules
    assert "rejected; the previous version stays in force" in reloaded


def test_metrics_have_labels_by_rule_and_outcome_but_not_by_caller(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> str:
        for _ in range(3):
            await operator.send(ADA_HEADER)
        return await operator.run("metrics")

    metrics = run_as_operator(tmp_path, scenario)

    assert 'wharf_limits_rule_requests_total{rule="core",outcome="refused"} 1' in metrics
    assert 'wharf_limits_rule_requests_total{rule="core",outcome="within"} 2' in metrics
    assert 'wharf_limits_decisions_total{verdict="primary"} 1' in metrics
    assert 'wharf_limits_gateway_replies_total{status="4xx"} 1' in metrics
    assert "ada" not in metrics


def test_the_metrics_port_serves_only_metrics(tmp_path: Path) -> None:
    async def get(port: int, target: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        reply = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return reply

    async def scenario(running: RunningGateway) -> tuple[bytes, bytes]:
        admin = AdminServer(running.gateway.limits, running.decision_service.world, running.gateway)
        await admin.open()
        try:
            return await get(admin.metrics_port, "/metrics"), await get(admin.metrics_port, "/rules")
        finally:
            await admin.close()

    metrics, rules = run_scenario(tmp_path, scenario, gateway='metrics_listen = "127.0.0.1:0"')

    assert metrics.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\n")
    assert rules.startswith(b"HTTP/1.1 404 ")


def test_activity_of_an_organization_has_the_format_of_insights(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> list[Any]:
        for _ in range(3):
            await operator.send(ADA_HEADER, target="/orgs/acme")
        await operator.send(f"Authorization: token {INSTALLATION}", target="/repos/acme/site/issues/7")
        await operator.send()  # A request about no resource of the organization.
        since = ("--since", "2020-01-01T00:00:00Z")
        return [
            json.loads(await operator.run("activity", "acme", "--group-by", group, *since))
            for group in ("summary", "route", "subject", "time", "resource")
        ]

    summary, routes, subjects, times, resources = run_as_operator(tmp_path, scenario)

    assert summary == {
        "total_request_count": 4,
        "rate_limited_request_count": 1,
        "secondary_limited_request_count": 0,
    }
    assert [(r["http_method"], r["api_route"], r["total_request_count"]) for r in routes] == [
        ("GET", "/orgs/acme", 3),
        ("GET", "/repos/acme/site/issues/*", 1),
    ]
    assert [(s["subject_type"], s["subject_name"]) for s in subjects] == [("user", "ada"), ("installation", "71")]
    assert sum(t["total_request_count"] for t in times) == 4
    assert [r["resource_name"] for r in resources] == ["acme", "acme/site"]


def test_activity_can_be_that_of_one_user_by_id_or_login(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> list[Any]:
        for _ in range(2):
            await operator.send(ADA_HEADER, target="/orgs/acme")
        await operator.send(target="/orgs/acme")
        return [
            json.loads(await operator.run("activity", "acme", "--since", "1h", *words))["total_request_count"]
            for words in ((), ("--user", "5"), ("--user", "ada"), ("--user", "6"))
        ]

    assert run_as_operator(tmp_path, scenario) == [3, 2, 2, 0]


def test_activity_can_be_that_of_one_actor_that_only_the_service_knows(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> list[int]:
        for _ in range(3):  # The first reply proves the credential.
            await operator.send("Authorization: token known-to-the-service", target="/orgs/acme")
        await operator.send(target="/orgs/acme")
        words = ("activity", "acme", "--since", "1h")
        actors = json.loads(await operator.run(*words, "--group-by", "user"))
        (opaque,) = [actor["actor_id"] for actor in actors if actor["actor_type"] == "opaque"]
        return [
            json.loads(await operator.run(*words, "--actor", actor))["total_request_count"]
            for actor in (f"opaque/{opaque}", "none/anonymous", "opaque/other")
        ]

    assert run_as_operator(tmp_path, scenario, rules="", more='credentials = "opaque"') == [2, 2, 0]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--actor", "opaque"), "'opaque' is not a type and an id, such as opaque/0a1b2c3d4e5f6071"),
        (("--actor", "opaque/1", "--user", "ada"), "--user and --actor both select an actor: use one of them"),
    ],
)
def test_an_invalid_actor_is_reported(tmp_path: Path, words: tuple[str, ...], problem: str) -> None:
    async def scenario(operator: Operator) -> str:
        return await operator.run("activity", "acme", "--since", "1h", *words, fails=True)

    assert problem in run_as_operator(tmp_path, scenario)


def test_activity_has_pages_of_a_hundred_rows(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> list[int]:
        caller = await operator.running.connect()
        for number in range(101):
            await caller.request(f"/repos/acme/r{number}", f"Authorization: token {INSTALLATION}")
        words = ("activity", "acme", "--since", "1h", "--group-by", "resource")
        return [len(json.loads(await operator.run(*words, "--page", page))) for page in ("1", "2")]

    assert run_as_operator(tmp_path, scenario, rules="") == [100, 1]


def test_since_accepts_a_time_or_a_duration_and_rejects_other_text(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> tuple[Any, str]:
        await operator.send(ADA_HEADER, target="/orgs/acme")
        last_hour = json.loads(await operator.run("activity", "acme", "--since", "1h"))
        return last_hour, await operator.run("activity", "acme", "--since", "tomorrow", fails=True)

    last_hour, error = run_as_operator(tmp_path, scenario)

    assert last_hour["total_request_count"] == 1
    assert 'expected a time such as 2027-01-31T12:00:00Z or a duration such as 1h, got "tomorrow"' in error
    assert "--since" in error


def test_a_command_without_a_limiter_reports_the_missing_listener(tmp_path: Path) -> None:
    result = CliRunner().invoke(root, ["limits", "top", "--admin-address", str(tmp_path / "none.sock")])

    assert "no limiter listens at" in result.output


def test_only_its_owner_can_connect_to_the_socket(tmp_path: Path) -> None:
    async def scenario(_: Operator) -> int:
        return (tmp_path / "data" / "admin.sock").stat().st_mode & 0o777

    assert run_as_operator(tmp_path, scenario) == 0o600


@pytest.mark.parametrize(
    ("rules", "code", "expected"),
    [
        (TWO_AN_HOUR, 0, "0 errors"),
        ("[[rule]]\nname = 3\n", 1, "rules.toml:2:1"),
        ('[[rule]]\nname = "odd"\ncounts = "points"\nwindow = "1m"\nceiling = 3\n', 1, "error: odd"),
    ],
)
def test_lint_exits_with_1_for_rules_that_a_limiter_would_reject(
    tmp_path: Path, rules: str, code: int, expected: str
) -> None:
    (tmp_path / "rules.toml").write_text(rules)

    result = CliRunner().invoke(root, ["limits", "lint", str(tmp_path / "rules.toml")])

    assert (result.exit_code, expected in result.output) == (code, True)


def lint(file: Path, text: str) -> tuple[int, list[str]]:
    """Return the exit code and the output of `wharf limits lint` for a file with this text, without its folder."""
    file.write_text(text)
    result = CliRunner().invoke(root, ["limits", "lint", str(file)])
    return result.exit_code, result.output.replace(f"{file.parent}/", "").splitlines()


def test_lint_checks_settings_and_says_which_rules_they_name(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(TWO_AN_HOUR)

    assert lint(tmp_path / "limits.toml", 'rules = "rules.toml"\n[gateway]\nlisten = "127.0.0.1:80"\n') == (
        0,
        ["limits.toml: 0 errors", "rules.toml: 25 rules, 0 errors, 0 warnings"],
    )


def test_lint_finds_all_mistakes_of_settings_in_one_run(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[[user]]\nlogin = 5\n")
    (tmp_path / "tls.crt").write_text("no certificate")
    text = """
rules = "absent.toml"
directory = "bad.toml"
credentials = "opaque"
credential_key_file = "absent.key"
[gateway]
lisen = "127.0.0.1:80"
certificate_file = "tls.crt"
key_file = "tls.key"
upstream_ca_file = "tls.crt"
[[sink]]
name = "logs"
kind = "file"
"""

    code, lines = lint(tmp_path / "limits.toml", text)

    assert (code, lines[-1]) == (1, "limits.toml: 7 errors")
    assert [line.partition(": ")[0] for line in lines[:-1]] == [
        "bad.toml:2:1",
        "limits.toml:2:1",
        "limits.toml:5:1",
        "limits.toml:7:1",
        "limits.toml:8:1",
        "limits.toml:10:1",
        "limits.toml:11:1",
    ]
    assert lines[1] == "limits.toml:2:1: rules: absent.toml cannot be read: No such file or directory"
    assert lines[3] == "limits.toml:7:1: gateway.lisen: is not known; did you mean 'listen'?"
    assert lines[4].endswith("certificate not usable: tls.key does not exist")


def test_lint_of_settings_shows_the_mistakes_of_their_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text('[[rule]]\nname = "odd"\ncounts = "points"\nwindow = "1m"\nceiling = 3\n')

    code, lines = lint(tmp_path / "limits.toml", 'rules = "rules.toml"\n[store]\n')

    assert (code, lines[0], lines[1].partition(":")[0]) == (1, "limits.toml: 0 errors", "rules.toml")


def test_lint_of_settings_creates_no_file(tmp_path: Path) -> None:
    lint(tmp_path / "limits.toml", 'data_folder = "data"\ncredentials = "opaque"\n')

    assert [path.name for path in tmp_path.iterdir()] == ["limits.toml"]


@pytest.mark.parametrize(
    ("added", "reported"),
    [
        ("", ""),
        ("# A comment.\n", ""),
        (
            "head_timeout = '3s'\n[store]\nsaved = false\n",
            ": restart the limiter to apply [gateway] head_timeout, [store] saved",
        ),
        ("lisen = 3\n", ", and the limiter could not start with it:\nlimits.toml:9:1: gateway.lisen: is not known"),
    ],
)
def test_reload_names_the_changed_settings_that_need_a_restart(tmp_path: Path, added: str, reported: str) -> None:
    async def scenario(operator: Operator) -> str:
        file = tmp_path / "limits.toml"
        file.write_text(file.read_text() + added)
        return await operator.run("reload", fails="lisen" in added)

    shown = run_as_operator(tmp_path, scenario).replace(f"{tmp_path}/", "")

    assert (f"limits.toml has changed since the start{reported}" in shown) is bool(reported)
    assert ("since the start" in shown) is bool(reported)


def test_activity_by_actor_and_resource_says_who_is_a_member(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> str:
        await operator.send(ADA_HEADER, target="/orgs/acme")
        return await operator.run("activity", "acme", "--group-by", "actor-resource", "--since", "60m", "--page", "1")

    text = run_as_operator(tmp_path, scenario)

    assert "acme" in text
    assert "is_member" in text


def test_activity_of_an_unknown_organization_is_an_error(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> str:
        return await operator.run("activity", "emca", "--since", "1h", fails=True)

    assert "organization 'emca' is not in the directory, so no request is counted for it" in run_as_operator(
        tmp_path, scenario
    )


def test_the_admin_port_accepts_commands_only_with_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, wrong_token = tmp_path / "token", tmp_path / "wrong"
    token.write_text("a-token-of-twenty-signs-or-more\n")
    wrong_token.write_text("another-token-of-twenty-signs\n")
    token.chmod(0o600)

    async def scenario(operator: Operator) -> tuple[str, list[str]]:
        await operator.send(ADA_HEADER)
        errors = []
        for file in ("", str(wrong_token), str(tmp_path / "none")):
            monkeypatch.setenv("WHARF_LIMITS_TOKEN_FILE", file)
            errors.append(await operator.run_at(f"http://127.0.0.1:{operator.port}", "top", fails=True))
        monkeypatch.setenv("WHARF_LIMITS_TOKEN_FILE", str(token))
        return await operator.run_at(f"http://127.0.0.1:{operator.port}", "top"), errors

    more = f'admin_listen = "127.0.0.1:0"\nadmin_token_file = "{token}"\n'
    top, (without_token, with_wrong_token, with_empty_token) = run_as_operator(tmp_path, scenario, more=more)

    assert "user:ada" in top
    assert "requires the limiter's token: set WHARF_LIMITS_TOKEN_FILE" in without_token
    assert "token required: set WHARF_LIMITS_TOKEN_FILE" in with_wrong_token
    assert "cannot read" in with_empty_token


@pytest.mark.parametrize(
    ("listen", "mode", "text", "problem"),
    [
        ("0.0.0.0:9000", 0o600, "a-token-of-twenty-signs", "is not a local address"),
        ("127.0.0.1:9000", 0o644, "a-token-of-twenty-signs", "other users can access"),
        ("127.0.0.1:9000", 0o600, "short", "does not hold a valid token"),
    ],
)
def test_an_admin_port_that_other_users_could_use_is_rejected(
    tmp_path: Path, listen: str, mode: int, text: str, problem: str
) -> None:
    (tmp_path / "token").write_text(text)
    (tmp_path / "token").chmod(mode)

    with pytest.raises(InvalidFile, match=problem):
        read_settings(f'admin_listen = "{listen}"\nadmin_token_file = "token"\n', folder=tmp_path)


def test_reload_fails_for_a_deleted_file(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> str:
        (tmp_path / "rules.toml").unlink()
        return await operator.run("reload", fails=True)

    assert "rules.toml does not exist any more" in run_as_operator(tmp_path, scenario)


def test_show_and_reset_include_hidden_limits(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> list[Any]:
        service = operator.running.decision_service
        await operator.send(ADA_HEADER)
        rulebook = service.evaluator.limiter.rulebook
        (caller,) = {entry.caller for entry in service.decision_log.list_recent()}
        charges = [c for c in rulebook.list_secondary_charges(caller, has_hidden=True) if c.name == "compute"]
        await service.evaluator.store.add_usage(charges, 1_234)

        def find_compute(view: Any) -> int:
            (limit,) = [limit for limit in view["limits"] if limit["rule"] == "compute"]
            return int(limit["used"])

        table = await operator.run("show", "user:ada")
        used = find_compute(await operator.run_json("show", "user:ada"))
        await operator.run("reset", "user:ada", "--rule", "compute")
        return ["compute" in table, used >= 1_234, find_compute(await operator.run_json("show", "user:ada"))]

    assert run_as_operator(tmp_path, scenario) == [True, True, 0]


def test_rules_in_a_narrow_terminal_keep_their_ceilings_windows_and_lines(tmp_path: Path) -> None:
    async def scenario(operator: Operator) -> Any:
        return await operator.run_json("rules")

    rules = run_as_operator(tmp_path, scenario)["rules"]
    narrow = click.unstyle(render_for_terminal(render_rules(rules, max_width=80))).splitlines()

    assert narrow[0].split() == ["Rule", "Window", "Ceilings", "Source"]
    assert max(map(len, narrow)) <= 80
    assert next(line for line in narrow if line.startswith("core ")).endswith("s.toml:1")
