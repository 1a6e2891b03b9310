"""The command `wharf limits audit`: the recorded changes by operators, and changes and decisions live."""

import http.client
import json
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.local_output import output_options, print_document
from wharf.cli.limits.admin_client import (
    AdminAddress,
    describe_shadow_refusal,
    iterate_events,
    list_admin_addresses,
    parse_since,
    query_all_limiters,
    query_limiter,
    socket_option,
)

AUDIT_TYPE: Final = "limits.audit"
DECISION_TYPE: Final = "limits.decision"
FIRST_EVENT: Final = "following"
"""The first event of a stream: nothing is missed from then on."""
LOST_EVENT: Final = "lost"
MAX_OUTAGE_S: Final = 60.0
"""How long the command connects again to a limiter that went away, such as for a restart."""
RETRY_S: Final = 1.0
MAX_QUEUED_EVENTS: Final = 1_000
"""Events of all limiters that wait to be printed; protects memory. The limiters hold and count the others."""


class _Event(NamedTuple):
    """An event of one of the followed limiters, or the error that ended one of them."""

    name: str = ""
    record: Any = None  # JSON.
    error: Exception | None = None


@click.command
@click.option("--follow", is_flag=True, help="Also print what happens from now on, until Ctrl-C.")
@click.option(
    "--decisions",
    is_flag=True,
    help="With --follow: also print requests that were refused, or would be without shadow mode, and a sample of the others.",
)
@click.option("--since", help="Begin: a time such as 2027-01-31T12:00:00Z, or a duration such as 1h.")
@click.option(
    "--count", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Number of recorded changes."
)
@click.option("--schema", is_flag=True, help="Print the JSON schema of all records instead.")
@socket_option
@output_options
def audit(
    follow: bool, decisions: bool, since: str | None, count: int, schema: bool, path: AdminAddress, as_json: bool
) -> None:
    """Show what operators changed, and follow changes and refusals live.

    With --json, each line is one record.
    """
    if decisions and not follow:
        raise click.UsageError("--decisions needs --follow: `wharf limits explain` shows the decision on one request")
    if schema:
        print_document(query_limiter(path, "/schema"))
        return
    # The followers connect first, so that nothing between both is missed.
    events = _follow_all(path, (AUDIT_TYPE, DECISION_TYPE) if decisions else (AUDIT_TYPE,)) if follow else None
    printed: set[str] = set()
    for record in _list_recorded(path, since, count):
        printed.add(record["id"])
        _print_record(record, as_json=as_json)
    if events is not None:
        for event in events:
            if event.name == LOST_EVENT:
                click.echo(f"{event.record['lost']} records were not shown: too many at once", err=True)
            elif event.record["id"] not in printed:
                _print_record(event.record, as_json=as_json)


def _list_recorded(path: AdminAddress, since: str | None, count: int) -> list[dict[str, Any]]:
    """Return the newest recorded changes of all limiters of the address, oldest first."""
    target = f"/audit?count={count}"
    if since is not None:
        from wharf.cli.common.times import parse_time

        target += f"&since_ms={max(0, int(parse_time(parse_since(since)).timestamp() * 1_000))}"
    by_id = {record["id"]: record for reply in query_all_limiters(path, target) for record in reply}
    return sorted(by_id.values(), key=lambda record: record["time"])[-count:]


def _follow_all(path: AdminAddress, types: Sequence[str]) -> Iterator[_Event]:
    """Start to follow all limiters of the address, and return their events. Raises CliError if one ends for too long."""
    events: queue.Queue[_Event] = queue.Queue(MAX_QUEUED_EVENTS)
    connected = []
    for address in list_admin_addresses(path):
        is_connected = threading.Event()
        connected.append(is_connected)
        arguments = (address, f"/stream?types={','.join(types)}", events, is_connected)
        threading.Thread(target=_follow_limiter, args=arguments, daemon=True).start()
    for is_connected in connected:
        is_connected.wait(MAX_OUTAGE_S)
    return _iterate_events(events)


def _iterate_events(events: "queue.Queue[_Event]") -> Iterator[_Event]:
    """Yield the events of the queue. Raises CliError for one with an error."""
    while True:
        event = events.get()
        if event.error is not None:
            raise event.error if isinstance(event.error, CliError) else CliError(str(event.error))
        yield event


def _follow_limiter(
    address: AdminAddress, target: str, events: "queue.Queue[_Event]", is_connected: threading.Event
) -> None:
    """Put the events of one limiter into the queue. Connects again after its last event if the connection is lost."""
    from wharf.world import RealWorld

    world = RealWorld()
    last_id, lost_s = "", world.monotonic_s()
    while True:
        reason: Exception | None = None
        try:
            for event_id, name, data in iterate_events(address, target, after_id=last_id):
                is_connected.set()
                lost_s = world.monotonic_s()
                if name == FIRST_EVENT:
                    continue
                last_id = event_id or last_id
                events.put(_Event(name, json.loads(data)))
        except CliError as error:
            events.put(_Event(error=error))
            is_connected.set()
            return
        except (OSError, http.client.HTTPException) as error:
            reason = error
        if (not last_id and not is_connected.is_set()) or world.monotonic_s() - lost_s > MAX_OUTAGE_S:
            why = reason or "the limiter ended the stream"
            events.put(_Event(error=CliError(f"no events from the limiter at {address}: {why}")))
            is_connected.set()
            return
        threading.Event().wait(RETRY_S)


def _print_record(record: dict[str, Any], *, as_json: bool) -> None:
    """Print a record as one line: of JSON, or with its most important facts."""
    from wharf.world.terminal_text import escape_controls

    if as_json:
        print_document(record, is_line=True)
        return
    data = record["data"]
    if record["type"] == DECISION_TYPE:
        text = f"{data['caller']}  {data['method']} {data['path']}  {_describe_verdict(data)}  {data['request_id']}"
    else:
        details = " ".join(_format_detail(name, value) for name, value in data["details"].items())
        text = "  ".join(part for part in (data["operator"], data["action"], details, data["reason"]) if part)
    click.echo(f"{record['time']}  {escape_controls(text)}")


def _describe_verdict(decision: dict[str, Any]) -> str:
    """Return what happened to a request, such as `refused (primary) by core`, or what would happen without shadow mode."""
    if decision["verdict"] != "admitted":
        return f"refused ({decision['verdict']})" + (f" by {decision['refused_by']}" if decision["refused_by"] else "")
    exceeded = [limit["rule"] for limit in decision["limits"] if limit["is_exceeded"] and not limit["is_enforced"]]
    return f"admitted{describe_shadow_refusal(exceeded, is_banned=bool(decision['banned_until']))}"


def _format_detail(name: str, value: object) -> str:
    """Return a detail of a change, such as `amount=7`; times in UTC, with `-` for no time."""
    if name.endswith("until_ms") and isinstance(value, int):
        from wharf.cli.common.times import NS_PER_SECOND, format_utc_time

        time = format_utc_time(value * NS_PER_SECOND // 1_000).replace(" ", "T")
        return f"{name.removesuffix('_ms')}={time}"
    return f"{name}={_format_value(value)}"


def _format_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
