"""The commands of `wharf limits` that change a running limiter, which writes each change to its audit log."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from wharf.cli.common.local_output import output_options, print_change, print_document
from wharf.cli.lazy_group import RenamedOption
from wharf.cli.limits.admin_client import (
    AdminAddress,
    duration_option,
    parse_duration_ms,
    parse_time_ms,
    post_action,
    post_action_to_all,
    query_limiter,
    reason_option,
    socket_option,
)

MAX_CREDENTIAL_CHARS: Final = 16_384
"""Limit of a credential on standard input; limiters read no longer one. Protects memory."""
MAX_EXPORT_BYTES: Final = 64 << 20
"""Limit of an exported state; limiters accept no larger request. Protects memory."""


@click.command
@click.argument("caller")
@click.option("--resource", default="core", show_default=True, help="The bucket.")
@click.option("--amount", type=click.IntRange(1), required=True, help="How many more requests in each window.")
@click.option("--duration", cls=RenamedOption, former_names=["--for"], help="Duration, such as 10m or 2h.")
@click.option("--until", help="End, such as 2027-01-31T12:00:00Z, instead of --duration.")
@reason_option
@socket_option
@output_options
def grant(
    caller: str,
    resource: str,
    amount: int,
    duration: str | None,
    until: str | None,
    reason: str,
    path: AdminAddress,
    as_json: bool,
) -> None:
    """Increase the limit of a caller for a time.

    The grant applies from the next request on and expires by itself.
    """
    if (duration is None) is (until is None):
        raise click.UsageError("give either --duration or --until")
    end = {"until_ms": parse_time_ms(until)} if until is not None else {"for_ms": parse_duration_ms(duration or "")}
    reply = post_action(path, "/grant", caller=caller, resource=resource, amount=amount, reason=reason, **end)
    period = f"until {until}" if until is not None else f"for {duration}"
    print_change(reply, f"granted {reply['owner']} {amount} more of {resource} {period}", as_json=as_json)


@click.command
@click.argument("caller")
@click.option("--resource", help="Only the grant of this bucket.  [default: all]")
@reason_option
@socket_option
@output_options
def revoke(caller: str, resource: str | None, reason: str, path: AdminAddress, as_json: bool) -> None:
    """End the grants of a caller."""
    grants = post_action(path, "/revoke", caller=caller, resource=resource, reason=reason)
    lines = [f"revoked from {grant['owner']}: {grant['amount']} more of {grant['resource']}" for grant in grants]
    print_change(grants, "\n".join(lines), as_json=as_json)


@click.command
@click.argument("caller")
@click.option("--rule", help="Only the counters of this rule or resource.")
@reason_option
@socket_option
@output_options
def reset(caller: str, rule: str | None, reason: str, path: AdminAddress, as_json: bool) -> None:
    """Set the counters of a caller to 0."""
    names = post_action(path, "/reset", caller=caller, rule=rule, reason=reason)
    print_change(names, f"reset the counters of {caller}: {', '.join(names)}", as_json=as_json)


BANNED_REQUESTS: Final = {
    "user": "all requests with credentials of this user are refused, also with new ones",
    "app": "all requests with tokens of this app are refused",
    "token": "all requests with this token are refused",
    "address": "requests from this address without a valid token are refused, requests with a token are not",
}
"""By the kind of a ban's subject, which requests the ban refuses."""


@click.command
@click.argument("subject")
@duration_option("10m")
@reason_option
@click.option("--message", default="", help="Text for the caller, which refusals show.")
@socket_option
@output_options
def ban(subject: str, duration: str, reason: str, message: str, path: AdminAddress, as_json: bool) -> None:
    """Refuse all requests of a user, app, token or address for a time.

    The ban of a user applies to all its credentials, also to new ones; the limiter must know their users. The ban of an address applies to its requests without a valid token, and that of a token only to tokens without an
    app. By default, bans of addresses are only recorded: see `addresses_shadow` of the rules.

    SUBJECT is user:ada, app:7, address:192.0.2.7 or token:…, as `wharf limits show` prints it, or credential:… as `wharf limits top`
    prints it.
    """
    shown = {"message": message} if message else {}
    reply = post_action(path, "/ban", subject=subject, for_ms=parse_duration_ms(duration), reason=reason, **shown)
    if reply.get("is_enforced", True):  # A gateway of an earlier version does not say it.
        refused = BANNED_REQUESTS[reply["subject"].partition(":")[0]]
        print_change(reply, f"banned {reply['subject']} for {duration}: {refused}", as_json=as_json)
        return
    key = "`shadow` in `[ban]`" if reply["is_shadow_for_all"] else "`addresses_shadow` in `[ban]`"
    if reply.get("is_shadow_for_rules"):
        key = "`shadow` at the top"
    print_change(
        reply,
        f"recorded a ban of {reply['subject']} for {duration}, which refuses nothing: bans are in shadow mode, because "
        f"{key} of the rules is true",
        as_json=as_json,
    )


@click.command
@click.argument("subject")
@reason_option
@socket_option
@output_options
def unban(subject: str, reason: str, path: AdminAddress, as_json: bool) -> None:
    """End a ban."""
    reply = post_action(path, "/ban", subject=subject, for_ms=0, reason=reason)
    was_banned = reply.get("was_banned", True)  # A gateway of an earlier version does not say it.
    text = f"lifted the ban of {reply['subject']}" if was_banned else f"{reply['subject']} was not banned"
    print_change(reply, text, as_json=as_json)


@click.command("revoke-credential")
@click.argument("name", required=False, default="")
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the credential itself from standard input.")
@reason_option
@socket_option
@output_options
def revoke_credential(name: str, from_stdin: bool, reason: str, path: AdminAddress, as_json: bool) -> None:
    """Ask again who owns a credential, or all credentials of a user.

    The service must have revoked the credential. Without this command the limiter notices it when the service answers
    401, or when its cached answer is too old.

    NAME is user:ada, or credential:… as `wharf limits top` prints it.
    """
    if bool(name) is from_stdin:
        raise click.UsageError("give either NAME or --stdin")
    credential = sys.stdin.read(MAX_CREDENTIAL_CHARS).strip() if from_stdin else ""
    if from_stdin and not credential:
        raise click.UsageError("standard input has no credential")
    reply = post_action(path, "/revoke-credential", subject=name, credential=credential, reason=reason)
    print_change(reply, f"revoked {name or reply['subjects'][0]}", as_json=as_json)


@click.command
@duration_option()
@reason_option
@socket_option
@output_options
def disable(duration: str, reason: str, path: AdminAddress, as_json: bool) -> None:
    """Disable all limits for a time.

    Requests pass without being counted and without rate limit headers. The limits are enabled again after the time.
    """
    reply = post_action(path, "/off", for_ms=parse_duration_ms(duration), reason=reason)
    print_change(reply, f"limits disabled for {duration}; `wharf limits enable` enables them now", as_json=as_json)


@click.command
@reason_option
@socket_option
@output_options
def enable(reason: str, path: AdminAddress, as_json: bool) -> None:
    """Enable limits again, before the time of `disable` is over."""
    reply = post_action(path, "/off", for_ms=0, reason=reason)
    print_change(reply, "limits enabled", as_json=as_json)


@click.command
@socket_option
@output_options
def reload(path: AdminAddress, as_json: bool) -> None:
    """Read the rules, the directory of users and the certificates again.

    Settings are read only at the start: if their file has changed since then, the command names the changed keys, for
    which a restart is needed. The exit code is 1 if a file was rejected, or if the limiter could not start with the
    changed settings.
    """
    lines: list[str] = []
    is_rejected = False
    replies = post_action_to_all(path, "/reload")
    for reply in replies:
        for name, problem in reply["refused"].items():
            is_rejected = True
            lines.append(f"{name} rejected; the previous version stays in force:\n{problem}")
        lines.append(f"{len(reply['rules'])} rules in force ({reply['hash']})")
        is_rejected |= bool(reply.get("settings_problem"))
        lines += _describe_changed_settings(reply)
    print_change(replies, "\n".join(dict.fromkeys(lines)), as_json=as_json)  # Processes that agree are reported once.
    if is_rejected:
        raise click.exceptions.Exit(1)


def _describe_changed_settings(reply: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if the settings file of a limiter has changed, which says what to do."""
    file = reply.get("changed_settings")  # A limiter of an earlier version does not send it.
    if not file:
        return
    if problem := reply.get("settings_problem"):
        yield f"{file} has changed since the start, and the limiter could not start with it:\n{problem}"
        return
    keys = ", ".join(reply.get("changed_keys", ()))
    yield f"{file} has changed since the start: restart the limiter to apply {keys or 'it'}"


@click.command
@socket_option
def export(path: AdminAddress) -> None:
    """Print grants, bans and counters as JSON.

    Counters in Redis are not included: they survive a restart of the limiter.
    """
    print_document(query_limiter(path, "/export"))


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@reason_option
@socket_option
@output_options
def import_state(file: Path, reason: str, path: AdminAddress, as_json: bool) -> None:
    """Import what `wharf limits export` printed.

    Grants are added. Counters and bans replace those with the same name.
    """
    from wharf.cli.common.documents import parse_json, read_utf8_text

    text = read_utf8_text(str(file), str(file), max_bytes=MAX_EXPORT_BYTES)
    exported = parse_json(str(file), text, max_values=None)
    reply = post_action(path, "/import", told=exported, reason=reason)
    text = f"imported {reply['grants']} grants, {reply['bans']} bans and {reply['counters']} counters"
    print_change(reply, text, as_json=as_json)


@click.command("simulate-outage")
@click.argument("target", metavar="store", type=click.Choice(("store", "store-down")))  # store-down: the former name.
@duration_option("30s")
@reason_option
@socket_option
@output_options
def simulate_outage(target: str, duration: str, reason: str, path: AdminAddress, as_json: bool) -> None:  # noqa: ARG001  # One choice.
    """Simulate an outage of the store of counters, to see how requests are answered meanwhile.

    Until the time is over, the limiter decides as each rule's `on_store_loss` says.
    """
    replies = post_action_to_all(path, "/drill", what="store-down", for_ms=parse_duration_ms(duration), reason=reason)
    text = f"simulating a store outage for {duration}; `wharf limits metrics` shows the decisions"
    print_change(replies, text, as_json=as_json)
