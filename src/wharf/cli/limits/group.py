"""The command group `wharf limits`: check rules, show what a running limiter counts and decides, and change it."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from wharf.cli.common.local_output import output_options, print_document
from wharf.cli.common.times import NS_PER_SECOND
from wharf.cli.lazy_group import CommandEntry, LazyGroup, RenamedOption
from wharf.cli.limits.admin_client import (
    AdminAddress,
    describe_outage,
    describe_shadow_refusal,
    query_all_limiters,
    query_limiter,
    socket_option,
)

_METRIC_SAMPLE = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")
CHANGES_MODULE = "wharf.cli.limits.changes"
MODULE = "wharf.cli.limits.group"
COMMANDS = {
    "serve": CommandEntry(
        "wharf.cli.limits.gateway",
        "serve",
        "Answer proxies such as Envoy, nginx, Traefik and Caddy.",
    ),
    "demo": CommandEntry(
        "wharf.cli.limits.gateway", "demo", "Show limits at work: a small service, a gateway and some callers."
    ),
    "simulate": CommandEntry(
        "wharf.cli.limits.simulate", "simulate", "Show which requests of access logs the rules would have refused."
    ),
    "lint": CommandEntry(MODULE, "lint", "Check a rules file or a settings file for mistakes."),
    "top": CommandEntry(MODULE, "top", "Show the callers with the most requests, and how many were refused."),
    "show": CommandEntry(MODULE, "show", "Show the counters of a caller."),
    "explain": CommandEntry(MODULE, "explain", "Explain why a request was refused or admitted."),
    "rules": CommandEntry(MODULE, "rules", "Show the rules in force, with file and line."),
    "activity": CommandEntry(MODULE, "activity", "Show the API requests about the resources of an organization."),
    "audit": CommandEntry(
        "wharf.cli.limits.audit", "audit", "Show what operators changed, and follow changes and refusals live."
    ),
    "metrics": CommandEntry(MODULE, "metrics", "Print metrics in the text format of Prometheus."),
    "grant": CommandEntry(CHANGES_MODULE, "grant", "Increase the limit of a caller for a time."),
    "revoke": CommandEntry(CHANGES_MODULE, "revoke", "End the grants of a caller."),
    "reset": CommandEntry(CHANGES_MODULE, "reset", "Set the counters of a caller to 0."),
    "ban": CommandEntry(CHANGES_MODULE, "ban", "Refuse all requests of a user, app, token or address for a time."),
    "unban": CommandEntry(CHANGES_MODULE, "unban", "End a ban."),
    "revoke-credential": CommandEntry(
        CHANGES_MODULE, "revoke_credential", "Ask again who owns a credential, or all credentials of a user."
    ),
    "disable": CommandEntry(CHANGES_MODULE, "disable", "Disable all limits for a time."),
    "enable": CommandEntry(CHANGES_MODULE, "enable", "Enable limits again."),
    "reload": CommandEntry(
        CHANGES_MODULE, "reload", "Read the rules, the directory of users and the certificates again."
    ),
    "export": CommandEntry(CHANGES_MODULE, "export", "Print grants, bans and counters as JSON."),
    "import": CommandEntry(CHANGES_MODULE, "import_state", "Import what `wharf limits export` printed."),
    "simulate-outage": CommandEntry(CHANGES_MODULE, "simulate_outage", "Simulate an outage of the store of counters."),
}
FORMER_NAMES = {
    "why": CommandEntry(MODULE, "explain", "wharf limits explain"),
    "off": CommandEntry(CHANGES_MODULE, "disable", "wharf limits disable"),
    "on": CommandEntry(CHANGES_MODULE, "enable", "wharf limits enable"),
    "drill": CommandEntry(CHANGES_MODULE, "simulate_outage", "wharf limits simulate-outage"),
}
"""Former names of commands, which still work but are not listed in help."""


@click.group(cls=LazyGroup, entries=COMMANDS, aliases=FORMER_NAMES)
def limits() -> None:
    """Write rate limit rules and operate a rate limiter."""


@click.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--compare-with",
    "before",
    cls=RenamedOption,
    former_names=["--before"],
    type=click.Path(path_type=Path, dir_okay=False),
    help="The rules that these would replace.",
)
@output_options
def lint(file: Path, before: Path | None, as_json: bool) -> None:
    """Check a rules file or a settings file for mistakes.

    Of a settings file, all keys are checked, and the files that they name: the rules, the directory, certificates and keys.
    Ports are not opened. The exit code is 1 if there are errors, with which a limiter would reject the file; not for
    warnings and notes.
    """
    from wharf.cli.common.documents import read_utf8_text
    from wharf.cli.common.errors import CliError
    from wharf.cli.limits.simulate import MAX_RULES_BYTES
    from wharf.limits.config.settings_file import is_settings_text
    from wharf.limits.rules import InvalidFile, lint_rules, read_rules

    files = [file] if before is None else [file, before]
    texts = [read_utf8_text(str(path), str(path), max_bytes=MAX_RULES_BYTES) for path in files]
    if is_settings_text(texts[0]):
        if before is not None:
            raise CliError(f"{file} is a settings file: --compare-with compares rules files")
        _lint_settings(file, texts[0], as_json=as_json)
        return
    try:
        rules, *old = [read_rules(text, str(path)) for text, path in zip(texts, files, strict=True)]
    except InvalidFile as error:
        raise CliError(str(error)) from None
    _print_findings(str(file), rules, lint_rules(rules, old[0] if old else None), as_json=as_json)


def _lint_settings(file: Path, text: str, *, as_json: bool) -> None:
    """Print the problems of a settings file, then those of its rules. Exit with 1 if there is an error."""
    from wharf.limits.settings_check import check_settings

    check = check_settings(text, file)
    if not as_json:
        for problem in check.problems:
            click.echo(str(problem))
        click.echo(f"{file}: {_format_count(len(check.problems), 'error')}")
    if check.rules is not None:
        _print_findings(check.rules_file, check.rules, check.findings, problems=check.problems, as_json=as_json)
    elif as_json:
        print_document(_list_problems(check.problems))
    if check.problems:
        raise click.exceptions.Exit(1)


def _print_findings(
    file: str, rules: Any, findings: Any, *, problems: Sequence[Any] = (), as_json: bool = False
) -> None:
    """Print the findings about rules, and how many there are. Exit with 1 if one is an error.

    As JSON, `problems` of the settings are printed before them.
    """
    import msgspec

    from wharf.limits.rules import Severity

    counts = {severity: sum(found.severity is severity for found in findings) for severity in Severity}
    if as_json:
        print_document([*_list_problems(problems), *(msgspec.to_builtins(found) for found in findings)])
    else:
        for finding in findings:
            click.echo(str(finding))
        click.echo(
            f"{file}: {len(rules.rules) + len(rules.descriptors)} rules, {_format_count(counts[Severity.ERROR], 'error')}, "
            f"{_format_count(counts[Severity.WARNING], 'warning')}"
        )
    if counts[Severity.ERROR]:
        raise click.exceptions.Exit(1)


def _list_problems(problems: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the problems of a settings file as JSON objects, with the fields of findings about rules."""
    return [
        {"severity": "error", "code": "settings", "file": problem.file, "line": problem.location.line}
        | {"rule": problem.key, "what": problem.message}
        for problem in problems
    ]


def _format_count(count: int, word: str) -> str:
    """Return a number with its noun, such as `2 errors`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


@click.command
@click.option("--count", type=click.IntRange(1, 1_000), default=20, show_default=True, help="Number of callers.")
@click.option(
    "--minutes", type=click.IntRange(1, 1_440), default=1, show_default=True, help="The last minutes to count."
)
@socket_option
@output_options
def top(count: int, minutes: int, path: AdminAddress, as_json: bool) -> None:
    """Show the callers with the most requests, and how many were refused.

    "Would refuse" counts the admitted requests that a limit or a ban in shadow mode would have refused.
    """
    from wharf.cli.common.rendering import render_table

    callers = _merge_activity(path, f"/top?minutes={minutes}")[:count]
    if as_json:
        print_document(callers)
        return
    titles = ("Caller", "Requests", "Refused", "Would refuse", "Busiest endpoint")
    names = ("caller", "requests", "refused", "would_refuse", "busiest")
    click.echo(render_table(titles, [tuple(caller[name] for name in names) for caller in callers]))


def _merge_activity(path: AdminAddress, target: str) -> list[dict[str, Any]]:
    """Return the counts of requests and refusals of each caller, summed over all processes, most requests first.

    A caller's busiest endpoint is that of the process with most of its requests.
    """
    replies = query_all_limiters(path, target)
    # Processes that share a Redis also report older numbers of the others. Prefer each process's own report.
    seen = {process: rows for reply in replies for process, rows in reply["seen"].items()}
    seen |= {reply["process"]: reply["seen"][reply["process"]] for reply in replies}
    rows_by_process: list[list[dict[str, Any]]] = list(seen.values())
    totals: dict[str, dict[str, Any]] = {}
    most_requests: dict[str, int] = {}
    for row in (row for rows in rows_by_process for row in rows):
        caller = row["caller"]
        total = totals.setdefault(
            caller, {"caller": caller, "requests": 0, "refused": 0, "would_refuse": 0, "busiest": ""}
        )
        total["requests"] += row["requests"]
        total["refused"] += row["refused"]
        total["would_refuse"] += row.get("would_refuse", 0)  # Limiters of an earlier version do not count these.
        if row["requests"] > most_requests.get(caller, 0):
            most_requests[caller], total["busiest"] = row["requests"], row["busiest"]
    return sorted(totals.values(), key=lambda row: (-row["requests"], row["caller"]))


@click.command
@click.argument("caller")
@socket_option
@output_options
def show(caller: str, path: AdminAddress, as_json: bool) -> None:
    """Show the counters of a caller.

    CALLER is user:ada (or ada), address:192.0.2.7, installation:71, app:7 or repository:acme/site, or a name as `wharf
    limits top` or a refusal shows it, such as "credential 0a1b2c3d".
    """
    from wharf.cli.common.rendering import render_pairs, render_section, render_table
    from wharf.cli.common.times import format_utc_time
    from wharf.contract.model.times import format_rounded_duration

    view = query_limiter(path, f"/callers/{quote(caller)}")
    if as_json:
        print_document(view)
        return
    banned_s = view["banned_for_s"]
    shadow = "" if view.get("is_ban_enforced", True) else " (shadow mode: nothing is refused)"
    ban = format_rounded_duration(banned_s * NS_PER_SECOND) + shadow if banned_s else ""
    if not view.get("is_ban_known", True):
        ban = "unknown, because the store does not reply"
    click.echo(render_pairs([
        ("Caller", view["caller"]),
        ("Credential", view["credential"]),
        ("Caller class", view["case"]),
        ("Banned as" if banned_s else "Ban subject", view["ban_subject"]),
        ("Banned for", ban),
        ("Banned by", _describe_origin_of_ban(view) if banned_s else ""),
    ]))  # fmt: skip
    if outage := describe_outage(view.get("fallback_processes")):
        click.echo(f"counted {outage}")
    for grant in view["grants"]:
        until = format_utc_time(grant["until_ms"] * NS_PER_SECOND // 1_000)
        text = f"{grant['amount']} more of {grant['resource']} until {until}"
        click.echo(f"grant: {text}, by {grant['by']}: {grant['reason'] or '-'}")
    rows = [
        (
            limit["rule"],
            limit["key"].partition(" ")[2] or "-",
            limit["used"],
            "unlimited" if limit["limit"] is None else limit["limit"],
            format_rounded_duration(limit["resets_in_s"] * NS_PER_SECOND),
            "yes" if limit.get("is_enforced", True) else "no (shadow)",
        )
        for limit in view["limits"]
        if limit["used"] or limit["resource"] == "core"
    ]
    titles = ("Rule", "Key", "Used", "Limit", "Resets in", "Enforced")
    click.echo(render_section("Limits in use", render_table(titles, rows)))


def _describe_origin_of_ban(view: Mapping[str, Any]) -> str:
    """Return the operator who made the ban of a caller, with the reason; for an automatic ban, the limiter."""
    if view.get("banned_by") is None:
        return "the limiter: too many requests while limited"
    return f"{view['banned_by']}: {view['ban_reason'] or '-'}"


@click.command
@click.argument("request_id")
@socket_option
@output_options
def explain(request_id: str, path: AdminAddress, as_json: bool) -> None:
    """Explain why a request was refused or admitted.

    The id is in the headers of the reply and in the message of a refusal. The table shows every limit that was checked,
    its counter before and after the request, and the line of the rule.
    """
    from wharf.cli.common.rendering import render_table
    from wharf.cli.common.times import format_utc_time

    decision = query_limiter(path, f"/why/{quote(request_id)}")
    if as_json:
        print_document(decision)
        return
    click.echo(
        f"{decision['method']} {decision['path']} of {decision['caller']} "
        f"({decision['credential']}, {decision['address']})"
    )
    if decision["verdict"] == "admitted":
        exceeded = [limit["rule"] for limit in decision["limits"] if limit["is_hit"] and not limit["is_enforced"]]
        is_banned = bool(decision.get("banned_until_ms"))
        verdict = f"admitted{describe_shadow_refusal(exceeded, is_banned=is_banned)}"
    else:
        verdict = f"refused ({decision['verdict']})"
    rule = f" by {decision['told_by']}" if decision["told_by"] else ""
    retry = f"; retry after {decision['retry_after_s']} s" if decision["retry_after_s"] else ""
    click.echo(f"{verdict}{rule}{retry}{': ' + decision['problem'] if decision['problem'] else ''}")
    if decision["verdict"] == "banned" and decision.get("banned_until_ms"):
        end = format_utc_time(decision["banned_until_ms"] * NS_PER_SECOND // 1_000)
        command = shlex.join(["wharf", "limits", "show", decision["caller"]])
        click.echo(f"the ban ends at {end}; `{command}` shows who made it and why")
    if outage := describe_outage(decision.get("fallback_processes")):
        click.echo(f"decided {outage}")
    if not decision["limits"]:
        return
    click.echo()
    rows = [
        (
            limit["rule"],
            limit["before"],
            limit["after"],
            limit["ceiling"],
            limit["cost"],
            ("exceeded" if limit["is_enforced"] else "exceeded (shadow)") if limit["is_hit"] else "ok",
            f"{limit['file']}:{limit['line']}",
        )
        for limit in decision["limits"]
    ]
    titles = ("Rule", "Before", "After", "Limit", "Cost", "Result", "Source")
    click.echo(render_table(titles, rows, shortenable_columns=("Rule", "Source")))


def render_rules(rules: Sequence[Mapping[str, Any]], *, max_width: int | None = None) -> str:
    """Return the table of the rules in force.

    `max_width` is in characters; by default the width of the terminal. In a narrow terminal, the ceilings and the lines in
    the file remain.
    """
    from wharf.cli.common.rendering import render_table

    rows = [
        (
            rule["name"],
            rule["resource"] or "-",
            rule["counts"],
            "/".join(rule["scope"]),
            f"{rule['window_s']}s",
            " ".join(str(ceiling) for ceiling in sorted(set(rule["ceilings"].values()))),
            "shadow" if rule["shadow"] else f"{rule['enforce']}%",
            rule["source"],
        )
        for rule in rules
    ]
    titles = ("Rule", "Resource", "Counts", "Scope", "Window", "Ceilings", "Enforced", "Source")
    return render_table(
        titles,
        rows,
        optional_columns=("Resource", "Scope", "Counts", "Enforced"),
        shortenable_columns=("Rule", "Source"),
        max_width=max_width,
    )


@click.command
@socket_option
@output_options
def rules(path: AdminAddress, as_json: bool) -> None:
    """Show the rules in force, with file and line."""
    from wharf.limits.core.rule import UNLIMITED

    reply = query_limiter(path, "/rules")
    if as_json:
        print_document(reply)
        return
    click.echo(render_rules(reply["rules"]))
    outage = reply["while_away"]
    if outage is not None:
        highest = {name: max(ceilings.values()) for name, ceilings in outage["at_most"].items() if ceilings}
        text = ", ".join(f"{name} {ceiling:,}" for name, ceiling in highest.items() if ceiling < UNLIMITED)
        click.echo(f"\nDuring a store outage, {outage['processes']} processes together admit at most: {text}")
    for name, problem in reply["refused"].items():
        click.echo(f"\n{name} was changed and rejected; the previous version stays in force:\n{problem}")


@click.command
@click.argument("organization")
@click.option(
    "--group-by",
    "by",
    cls=RenamedOption,
    former_names=["--by"],
    type=click.Choice(("summary", "time", "route", "subject", "user", "resource", "bucket", "actor-resource")),
    default="summary",
    show_default=True,
    help="How requests are grouped.",
)
@click.option("--since", required=True, help="Begin: a time such as 2027-01-31T12:00:00Z, or a duration such as 1h.")
@click.option("--user", default="", help="Only requests of this user: the numeric id or the login.")
@click.option(
    "--actor",
    default="",
    metavar="TYPE/ID",
    help="Only requests of this actor, such as opaque/0a1b2c3d4e5f6071: type and id as `--group-by user` prints them.",
)
@click.option("--page", type=click.IntRange(1, 1_000_000), default=1, show_default=True, help="The page of 100 rows.")
@socket_option
def activity(organization: str, by: str, since: str, user: str, actor: str, page: int, path: AdminAddress) -> None:
    """Show the API requests about the resources of an organization, from all callers."""
    from wharf.cli.limits.admin_client import parse_since

    if user and actor:
        raise click.UsageError("--user and --actor both select an actor: use one of them")
    kind, slash, actor_id = actor.partition("/")
    if actor and not (kind and slash and actor_id):
        raise click.UsageError(f"--actor: {actor!r} is not a type and an id, such as opaque/0a1b2c3d4e5f6071")
    if user:
        kind, actor_id = "users", user
    selection = f"/{quote(kind, safe='')}/{quote(actor_id, safe='')}" if actor_id else ""
    query = f"min_timestamp={quote(parse_since(since))}&per_page=100&page={page}"
    print_document(
        query_limiter(path, f"/orgs/{quote(organization, safe='')}/insights/api/{by}-stats{selection}?{query}")
    )


@click.command
@socket_option
def metrics(path: AdminAddress) -> None:
    """Print metrics in the text format of Prometheus.

    If there are several processes, the label `process` names the process of each value.
    """
    from wharf.cli.limits.admin_client import query_text_of_all

    texts = query_text_of_all(path, "/metrics")
    if len(texts) == 1:
        click.echo(next(iter(texts.values())), nl=False)
        return
    # A metric must be one block: its comments once, then the samples of all processes.
    samples: dict[str, list[str]] = {}
    comments: dict[str, list[str]] = {}
    for process, text in texts.items():
        for line in text.splitlines():
            if line.startswith("#"):
                lines = comments.setdefault(line.split(" ")[2], [])
                if line not in lines:
                    lines.append(line)
                continue
            name, labels, value = _METRIC_SAMPLE.fullmatch(line).groups()  # type: ignore[union-attr] # Always matches.
            labels = ",".join(filter(None, (labels, f'process="{process}"')))
            samples.setdefault(name, []).append(f"{name}{{{labels}}} {value}")
    for name, lines in samples.items():
        click.echo("\n".join([*comments.get(name, ()), *lines]))
