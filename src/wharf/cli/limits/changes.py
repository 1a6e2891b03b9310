"""`wharf limits` that changes something: each act is audited by the limiter, with who and why."""

import json
from pathlib import Path

import click

from wharf.cli.limits.admin_client import (
    AdminAddress,
    duration_option,
    json_option,
    parse_duration_ms,
    parse_time_ms,
    post_action,
    post_action_to_all,
    print_json,
    query_limiter,
    reason_option,
    socket_option,
)


@click.command
@click.argument("caller")
@click.option("--resource", default="core", show_default=True, help="Of which bucket.")
@click.option("--amount", type=click.IntRange(1), required=True, help="How much more in a window.")
@click.option("--for", "length", help="How long, as 10m or 2h.")
@click.option("--until", help="Until when, as 2027-01-31T12:00:00Z; in the place of --for.")
@reason_option
@socket_option
@json_option
def grant(
    caller: str,
    resource: str,
    amount: int,
    length: str | None,
    until: str | None,
    reason: str,
    path: AdminAddress,
    as_json: bool,
) -> None:
    """Give a caller more of a resource, for a time.

    It holds from the next request on, and ends by itself.
    """
    if (length is None) is (until is None):
        raise click.UsageError("Say when it ends: either --for or --until.")
    end = {"until_ms": parse_time_ms(until)} if until is not None else {"for_ms": parse_duration_ms(length or "")}
    found = post_action(path, "/grant", caller=caller, resource=resource, amount=amount, reason=reason, **end)
    if as_json:
        print_json(found)
    else:
        when = f"until {until}" if until is not None else f"for {length}"
        click.echo(f"{found['owner']} may use {amount} more of {resource} {when}")


@click.command
@click.argument("caller")
@click.option("--resource", help="Of which bucket.  [default: all]")
@reason_option
@socket_option
def revoke(caller: str, resource: str | None, reason: str, path: AdminAddress) -> None:
    """End a grant now."""
    for ended in post_action(path, "/revoke", caller=caller, resource=resource, reason=reason):
        click.echo(f"{ended['owner']} no longer has {ended['amount']} more of {ended['resource']}")


@click.command
@click.argument("caller")
@click.option("--rule", help="Only the counters of this rule or resource.")
@reason_option
@socket_option
def reset(caller: str, rule: str | None, reason: str, path: AdminAddress) -> None:
    """Start the counters of a caller again."""
    names = post_action(path, "/reset", caller=caller, rule=rule, reason=reason)
    click.echo(f"{caller} begins anew: {', '.join(names)}")


@click.command
@click.argument("subject")
@duration_option("10m")
@reason_option
@socket_option
def ban(subject: str, length: str, reason: str, path: AdminAddress) -> None:
    """Refuse an app, a token or an address for a time.

    SUBJECT is app:7, address:192.0.2.7 or token:…, as `wharf limits show` names it.
    """
    post_action(path, "/ban", subject=subject, for_ms=parse_duration_ms(length), reason=reason)
    click.echo(f"{subject} is banned for {length}")


@click.command
@click.argument("subject")
@reason_option
@socket_option
def unban(subject: str, reason: str, path: AdminAddress) -> None:
    """End a ban."""
    post_action(path, "/ban", subject=subject, for_ms=0, reason=reason)
    click.echo(f"{subject} is not banned")


@click.command
@duration_option()
@reason_option
@socket_option
def off(length: str, reason: str, path: AdminAddress) -> None:
    """Switch all limits off for a time.

    Requests pass uncounted and without limits in their headers. Limits are on again by themselves.
    """
    post_action(path, "/off", for_ms=parse_duration_ms(length), reason=reason)
    click.echo(f"limits are off for {length}; `wharf limits on` ends that")


@click.command
@reason_option
@socket_option
def on(reason: str, path: AdminAddress) -> None:
    """Switch limits on again."""
    post_action(path, "/off", for_ms=0, reason=reason)
    click.echo("limits are on")


@click.command
@socket_option
def reload(path: AdminAddress) -> None:
    """Read rules and directory again."""
    said: list[str] = []
    for found in post_action_to_all(path, "/reload"):
        for name, problem in found["refused"].items():
            said.append(f"{name} is not used; what was in force before goes on:\n{problem}")
        said.append(f"{len(found['rules'])} rules are in force ({found['hash']})")
    for line in dict.fromkeys(said):  # Where all processes agree it is said once.
        click.echo(line)


@click.command
@socket_option
def export(path: AdminAddress) -> None:
    """Print grants, bans and counters as JSON.

    Counters on Redis are not among them: they stay where they are.
    """
    print_json(query_limiter(path, "/export"))


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@reason_option
@socket_option
def import_state(file: Path, reason: str, path: AdminAddress) -> None:
    """Put in what was exported.

    Grants are added. Counters and bans take the place of those with the same name.
    """
    try:
        told = json.loads(file.read_text("utf-8"))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as problem:
        raise click.ClickException(f"{file} is no export: {problem}") from None
    found = post_action(path, "/import", told=told, reason=reason)
    click.echo(f"{found['grants']} grants, {found['bans']} bans and {found['counters']} counters were put in")


@click.command
@click.argument("what", type=click.Choice(("store-down",)))
@duration_option("30s")
@reason_option
@socket_option
def drill(what: str, length: str, reason: str, path: AdminAddress) -> None:
    """Try how it is when the store is away.

    Requests are answered as each rule's `on_store_loss` says, until the time is over.
    """
    post_action_to_all(path, "/drill", what=what, for_ms=parse_duration_ms(length), reason=reason)
    click.echo(f"{what} for {length}: `wharf limits metrics` shows what is decided meanwhile")
