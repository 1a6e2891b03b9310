"""`wharf limits`: rules are checked, and a limiter that runs is looked at and told what to do."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from wharf.cli.lazy_group import CommandEntry, LazyGroup
from wharf.cli.limits.admin_client import (
    AdminAddress,
    json_option,
    print_json,
    query_all_limiters,
    query_limiter,
    socket_option,
)

_SAMPLE = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")
COMMANDS = {
    "demo": CommandEntry(
        "wharf.cli.limits.gateway", "demo", "See limits at work: a small service, a gateway and some callers."
    ),
    "simulate": CommandEntry("wharf.cli.limits.simulate", "simulate", "Show whom rules would have refused."),
    "lint": CommandEntry("wharf.cli.limits.group", "lint", "Look for mistakes in a rules file."),
    "top": CommandEntry("wharf.cli.limits.group", "top", "Show who asks most, and who is refused."),
    "show": CommandEntry("wharf.cli.limits.group", "show", "Show the counters of a caller."),
    "why": CommandEntry("wharf.cli.limits.group", "why", "Say why a request was refused, or admitted."),
    "rules": CommandEntry(
        "wharf.cli.limits.group", "rules", "Show the rules in force, with the lines that they stand in."
    ),
    "activity": CommandEntry(
        "wharf.cli.limits.group", "activity", "Show what was asked in the name of an organization."
    ),
    "metrics": CommandEntry("wharf.cli.limits.group", "metrics", "Print metrics, in the text form of Prometheus."),
    "grant": CommandEntry("wharf.cli.limits.changes", "grant", "Give a caller more of a resource, for a time."),
    "revoke": CommandEntry("wharf.cli.limits.changes", "revoke", "End a grant now."),
    "reset": CommandEntry("wharf.cli.limits.changes", "reset", "Start the counters of a caller again."),
    "ban": CommandEntry("wharf.cli.limits.changes", "ban", "Refuse an app, a token or an address for a time."),
    "unban": CommandEntry("wharf.cli.limits.changes", "unban", "End a ban."),
    "off": CommandEntry("wharf.cli.limits.changes", "off", "Switch all limits off for a time."),
    "on": CommandEntry("wharf.cli.limits.changes", "on", "Switch limits on again."),
    "reload": CommandEntry("wharf.cli.limits.changes", "reload", "Read rules and directory again."),
    "export": CommandEntry("wharf.cli.limits.changes", "export", "Print grants, bans and counters as JSON."),
    "import": CommandEntry("wharf.cli.limits.changes", "import_state", "Put in what was exported."),
    "drill": CommandEntry("wharf.cli.limits.changes", "drill", "Try how it is when the store is away."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def limits() -> None:
    """Write rules, and operate the limiter of a service."""


@click.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--before", type=click.Path(path_type=Path, dir_okay=False), help="The rules that these would replace.")
@json_option
def lint(file: Path, before: Path | None, as_json: bool) -> None:
    """Look for mistakes in a rules file.

    It ends with 1 when there are errors, which a limiter would refuse. Warnings and notes are for people to weigh.
    """
    import msgspec

    from wharf.cli.common.errors import CliError
    from wharf.limits.rules import InvalidFile, Severity, lint_rules, read_rules

    try:
        rules = read_rules(file.read_text("utf-8"), str(file))
        old = read_rules(before.read_text("utf-8"), str(before)) if before is not None else None
    except InvalidFile as refused:
        raise CliError(str(refused)) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise CliError(f"{file} cannot be read: {getattr(problem, 'strerror', None) or problem}") from None
    findings = lint_rules(rules, old)
    if as_json:
        print_json([msgspec.to_builtins(finding) for finding in findings])
    else:
        for finding in findings:
            click.echo(str(finding))
        click.echo(f"{file}: {len(rules.rules)} rules, {_count(findings, Severity.ERROR, 'error')}, "
                   f"{_count(findings, Severity.WARNING, 'warning')}")  # fmt: skip
    if any(finding.severity is Severity.ERROR for finding in findings):
        raise click.exceptions.Exit(1)


def _count(findings: Any, severity: object, word: str) -> str:
    count = sum(finding.severity is severity for finding in findings)
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


@click.command
@click.option("--count", type=click.IntRange(1, 1_000), default=20, show_default=True, help="How many callers.")
@click.option("--minutes", type=click.IntRange(1, 1_440), default=1, show_default=True, help="Of how many minutes.")
@socket_option
@json_option
def top(count: int, minutes: int, path: AdminAddress, as_json: bool) -> None:
    """Show who asks most, and who is refused."""
    from wharf.cli.common.rendering import render_table

    found = _together(path, f"/top?minutes={minutes}")[:count]
    if as_json:
        print_json(found)
        return
    rows = [(row["caller"], row["requests"], row["refused"], row["busiest"]) for row in found]
    click.echo(render_table(("CALLER", "REQUESTS", "REFUSED", "BUSIEST AT"), rows))


def _together(path: AdminAddress, target: str) -> list[dict[str, Any]]:
    """What all processes saw of each caller, busiest first; where it is busiest, the process says that saw most of it."""
    answers = query_all_limiters(path, target)
    # Who shares a Redis tells what the others left there, some seconds ago; what each says of itself is fresh.
    seen = {process: rows for answer in answers for process, rows in answer["seen"].items()}
    seen |= {answer["process"]: answer["seen"][answer["process"]] for answer in answers}
    told: list[list[dict[str, Any]]] = list(seen.values())
    found: dict[str, dict[str, Any]] = {}
    most: dict[str, int] = {}
    for row in (row for rows in told for row in rows):
        caller = row["caller"]
        sum_of = found.setdefault(caller, {"caller": caller, "requests": 0, "refused": 0, "busiest": ""})
        sum_of["requests"] += row["requests"]
        sum_of["refused"] += row["refused"]
        if row["requests"] > most.get(caller, 0):
            most[caller], sum_of["busiest"] = row["requests"], row["busiest"]
    return sorted(found.values(), key=lambda row: (-row["requests"], row["caller"]))


@click.command
@click.argument("caller")
@socket_option
@json_option
def show(caller: str, path: AdminAddress, as_json: bool) -> None:
    """Show the counters of a caller.

    CALLER is user:ada (or ada), address:192.0.2.7, installation:71, app:7 or repository:acme/site.
    """
    from wharf.cli.common.rendering import render_pairs, render_section, render_table
    from wharf.cli.common.times import NS_PER_SECOND, format_rounded_duration, format_utc_time

    found = query_limiter(path, f"/callers/{quote(caller)}")
    if as_json:
        print_json(found)
        return
    banned_s = found["banned_for_s"]
    click.echo(render_pairs([
        ("caller", found["caller"]),
        ("credential", found["credential"]),
        ("ceilings of", found["case"]),
        ("banned as", found["ban_subject"]),
        ("banned for", format_rounded_duration(banned_s * 1_000_000_000) if banned_s else ""),
    ]))  # fmt: skip
    for grant in found["grants"]:
        until = format_utc_time(grant["until_ms"] * NS_PER_SECOND // 1_000)
        given = f"{grant['amount']} more of {grant['resource']} until {until}"
        click.echo(f"grant: {given}, by {grant['by']}: {grant['reason'] or '-'}")
    rows = [
        (
            limit["rule"],
            limit["key"].partition(" ")[2] or "-",
            limit["used"],
            "unlimited" if limit["limit"] is None else limit["limit"],
            format_rounded_duration(limit["resets_in_s"] * 1_000_000_000),
        )
        for limit in found["limits"]
        if limit["used"] or limit["resource"] == "core"
    ]
    click.echo(render_section("Limits in use", render_table(("RULE", "OF IT", "USED", "LIMIT", "FREE IN"), rows)))


@click.command
@click.argument("request_id")
@socket_option
@json_option
def why(request_id: str, path: AdminAddress, as_json: bool) -> None:
    """Say why a request was refused, or admitted.

    The id stands in the reply's headers and in the message of a refusal. Every limit that was looked at is shown with
    its counter before and after, and the line of the rule.
    """
    from wharf.cli.common.rendering import render_table

    found = query_limiter(path, f"/why/{quote(request_id)}")
    if as_json:
        print_json(found)
        return
    click.echo(f"{found['method']} {found['path']} of {found['caller']} ({found['credential']}, {found['address']})")
    verdict = "admitted" if found["verdict"] == "admitted" else f"refused ({found['verdict']})"
    told_by = f" by {found['told_by']}" if found["told_by"] else ""
    wait = f"; told to wait {found['retry_after_s']} s" if found["retry_after_s"] else ""
    click.echo(f"{verdict}{told_by}{wait}{': ' + found['problem'] if found['problem'] else ''}\n")
    rows = [
        (
            limit["rule"],
            limit["before"],
            limit["after"],
            limit["ceiling"],
            limit["cost"],
            ("refused" if limit["is_enforced"] else "in shadow") if limit["is_hit"] else "room",
            f"{limit['file']}:{limit['line']}",
        )
        for limit in found["limits"]
    ]
    click.echo(render_table(("RULE", "BEFORE", "AFTER", "LIMIT", "COST", "SAID", "WHERE"), rows))


@click.command
@socket_option
@json_option
def rules(path: AdminAddress, as_json: bool) -> None:
    """Show the rules in force, with the lines that they stand in."""
    from wharf.cli.common.rendering import render_table
    from wharf.limits.core.rule import UNLIMITED

    found = query_limiter(path, "/rules")
    if as_json:
        print_json(found)
        return
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
        for rule in found["rules"]
    ]
    click.echo(render_table(("RULE", "RESOURCE", "COUNTS", "SCOPE", "WINDOW", "CEILINGS", "ENFORCED", "WHERE"), rows))
    away = found["while_away"]
    if away is not None:
        highest = {name: max(of.values()) for name, of in away["at_most"].items() if of}
        said = ", ".join(f"{name} {most:,}" for name, most in highest.items() if most < UNLIMITED)
        click.echo(f"\nWhile the store is away, {away['processes']} processes together admit at most: {said}")
    for name, problem in found["refused"].items():
        click.echo(f"\n{name} was changed and is not used:\n{problem}")


@click.command
@click.argument("organization")
@click.option(
    "--by",
    type=click.Choice(("summary", "time", "route", "subject")),
    default="summary",
    show_default=True,
    help="How requests are put together.",
)
@click.option("--since", required=True, help="Since when: 2027-01-31T12:00:00Z, or how long ago, as 1h.")
@socket_option
def activity(organization: str, by: str, since: str, path: AdminAddress) -> None:
    """Show what was asked in the name of an organization."""
    from wharf.cli.limits.admin_client import parse_since

    target = f"/orgs/{quote(organization)}/insights/api/{by}-stats?min_timestamp={quote(parse_since(since))}"
    print_json(query_limiter(path, target))


@click.command
@socket_option
def metrics(path: AdminAddress) -> None:
    """Print metrics, in the text form of Prometheus.

    Those of several processes are told apart by the label `process`.
    """
    from wharf.cli.limits.admin_client import query_text_of_all

    told = query_text_of_all(path, "/metrics")
    if len(told) == 1:
        click.echo(next(iter(told.values())), nl=False)
        return
    samples: dict[str, list[str]] = {}
    about: dict[str, list[str]] = {}
    for process, text in told.items():
        for line in text.splitlines():
            if line.startswith("#"):
                lines = about.setdefault(line.split(" ")[2], [])
                if line not in lines:
                    lines.append(line)
                continue
            name, labels, value = _SAMPLE.fullmatch(line).groups()  # type: ignore[union-attr] # We wrote it.
            labels = ",".join(filter(None, (labels, f'process="{process}"')))
            samples.setdefault(name, []).append(f"{name}{{{labels}}} {value}")
    for name, lines in samples.items():
        click.echo("\n".join([*about.get(name, ()), *lines]))
