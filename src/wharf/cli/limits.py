"""`wharf limits`: rules are checked, and a limiter that runs is looked at and told what to do."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.limits_speaking import Where, ask, ask_all, json_option, show_json, socket_option

_SAMPLE = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")
COMMANDS = {
    "demo": Entry("wharf.cli.limits_demo", "demo", "See limits at work: a small service, a gateway and some callers."),
    "simulate": Entry("wharf.cli.limits_simulate", "simulate", "Show whom rules would have refused."),
    "lint": Entry("wharf.cli.limits", "lint", "Look for mistakes in a rules file."),
    "top": Entry("wharf.cli.limits", "top", "Show who asks most, and who is refused."),
    "show": Entry("wharf.cli.limits", "show", "Show the counters of a caller."),
    "why": Entry("wharf.cli.limits", "why", "Say why a request was refused, or admitted."),
    "rules": Entry("wharf.cli.limits", "rules", "Show the rules in force, with the lines that they stand in."),
    "activity": Entry("wharf.cli.limits", "activity", "Show what was asked in the name of an organization."),
    "metrics": Entry("wharf.cli.limits", "metrics", "Print metrics, in the text form of Prometheus."),
    "grant": Entry("wharf.cli.limits_acts", "grant", "Give a caller more of a resource, for a time."),
    "revoke": Entry("wharf.cli.limits_acts", "revoke", "End a grant now."),
    "reset": Entry("wharf.cli.limits_acts", "reset", "Start the counters of a caller again."),
    "ban": Entry("wharf.cli.limits_acts", "ban", "Refuse an app, a token or an address for a time."),
    "unban": Entry("wharf.cli.limits_acts", "unban", "End a ban."),
    "off": Entry("wharf.cli.limits_acts", "off", "Switch all limits off for a time."),
    "on": Entry("wharf.cli.limits_acts", "on", "Switch limits on again."),
    "reload": Entry("wharf.cli.limits_acts", "reload", "Read rules and directory again."),
    "export": Entry("wharf.cli.limits_acts", "export", "Print grants, bans and counters as JSON."),
    "import": Entry("wharf.cli.limits_acts", "take_in", "Put in what was exported."),
    "drill": Entry("wharf.cli.limits_acts", "drill", "Try how it is when the store is away."),
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

    from wharf.cli.failing import Failed
    from wharf.limits.rules import FileRefused, Severity, read_rules
    from wharf.limits.rules import lint as find_mistakes

    try:
        rules = read_rules(file.read_text("utf-8"), str(file))
        old = read_rules(before.read_text("utf-8"), str(before)) if before is not None else None
    except FileRefused as refused:
        raise Failed(str(refused)) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise Failed(f"{file} cannot be read: {getattr(problem, 'strerror', None) or problem}") from None
    findings = find_mistakes(rules, old)
    if as_json:
        show_json([msgspec.to_builtins(finding) for finding in findings])
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
def top(count: int, minutes: int, path: Where, as_json: bool) -> None:
    """Show who asks most, and who is refused."""
    from wharf.cli.tables import table

    found = _together(path, f"/top?minutes={minutes}")[:count]
    if as_json:
        show_json(found)
        return
    rows = [(row["caller"], row["requests"], row["refused"], row["busiest"]) for row in found]
    click.echo(table(("CALLER", "REQUESTS", "REFUSED", "BUSIEST AT"), rows))


def _together(path: Where, target: str) -> list[dict[str, Any]]:
    """What all processes saw of each caller, busiest first; where it is busiest, the process says that saw most of it."""
    answers = ask_all(path, target)
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
def show(caller: str, path: Where, as_json: bool) -> None:
    """Show the counters of a caller.

    CALLER is user:ada (or ada), address:192.0.2.7, installation:71, app:7 or repository:acme/site.
    """
    from wharf.cli.moments import SECOND, say_date, say_length
    from wharf.cli.tables import pairs, section, table

    found = ask(path, f"/callers/{quote(caller)}")
    if as_json:
        show_json(found)
        return
    banned_s = found["banned_for_s"]
    click.echo(pairs([
        ("caller", found["caller"]),
        ("credential", found["credential"]),
        ("ceilings of", found["case"]),
        ("banned as", found["ban_subject"]),
        ("banned for", say_length(banned_s * 1_000_000_000) if banned_s else ""),
    ]))  # fmt: skip
    for grant in found["grants"]:
        until = say_date(grant["until_ms"] * SECOND // 1_000)
        given = f"{grant['amount']} more of {grant['resource']} until {until}"
        click.echo(f"grant: {given}, by {grant['by']}: {grant['reason'] or '-'}")
    rows = [
        (
            limit["rule"],
            limit["key"].partition(" ")[2] or "-",
            limit["used"],
            "unlimited" if limit["limit"] is None else limit["limit"],
            say_length(limit["resets_in_s"] * 1_000_000_000),
        )
        for limit in found["limits"]
        if limit["used"] or limit["resource"] == "core"
    ]
    click.echo(section("Limits in use", table(("RULE", "OF IT", "USED", "LIMIT", "FREE IN"), rows)))


@click.command
@click.argument("request_id")
@socket_option
@json_option
def why(request_id: str, path: Where, as_json: bool) -> None:
    """Say why a request was refused, or admitted.

    The id stands in the reply's headers and in the message of a refusal. Every limit that was looked at is shown with
    its counter before and after, and the line of the rule.
    """
    from wharf.cli.tables import table

    found = ask(path, f"/why/{quote(request_id)}")
    if as_json:
        show_json(found)
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
    click.echo(table(("RULE", "BEFORE", "AFTER", "LIMIT", "COST", "SAID", "WHERE"), rows))


@click.command
@socket_option
@json_option
def rules(path: Where, as_json: bool) -> None:
    """Show the rules in force, with the lines that they stand in."""
    from wharf.cli.tables import table
    from wharf.limits.core.rule import UNLIMITED

    found = ask(path, "/rules")
    if as_json:
        show_json(found)
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
    click.echo(table(("RULE", "RESOURCE", "COUNTS", "SCOPE", "WINDOW", "CEILINGS", "ENFORCED", "WHERE"), rows))
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
def activity(organization: str, by: str, since: str, path: Where) -> None:
    """Show what was asked in the name of an organization."""
    from wharf.cli.limits_speaking import beginning

    target = f"/orgs/{quote(organization)}/insights/api/{by}-stats?min_timestamp={quote(beginning(since))}"
    show_json(ask(path, target))


@click.command
@socket_option
def metrics(path: Where) -> None:
    """Print metrics, in the text form of Prometheus.

    Those of several processes are told apart by the label `process`.
    """
    from wharf.cli.limits_speaking import ask_text_of_all

    told = ask_text_of_all(path, "/metrics")
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
