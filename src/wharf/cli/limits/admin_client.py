"""Requests to the admin endpoint of a running limiter, over its Unix socket or its port, and options for that.

A folder as address means the limiters of all processes with a socket in it. Requests are not repeated on failure.
"""

import contextlib
import getpass
import http.client
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.times import NS_PER_SECOND
from wharf.cli.common.waiting_notices import announce_wait
from wharf.cli.lazy_group import RenamedOption
from wharf.world.unix_sockets import shorten_socket_path


class UnknownNameError(CliError):
    """A limiter does not know what a command names."""


F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SOCKET: Final = ".wharf/limits/admin.sock"
RESPONSE_TIMEOUT_S: Final = 30.0
"""How long a limiter may take for its whole reply."""
MAX_RESPONSE_BYTES: Final = 256 * 1024 * 1024
"""The longest reply of a limiter; protects memory."""
MAX_EVENT_LINE_BYTES: Final = 4 << 20
"""The longest line of a stream; protects memory. A record has at most a quarter of it."""
TOKEN_FILE_VARIABLE: Final = "WHARF_LIMITS_TOKEN_FILE"


class AdminUrl(str):
    """The URL of a limiter's admin port, such as `http://127.0.0.1:9090`."""


AdminAddress = Path | AdminUrl


class _AdminAddressType(click.ParamType[AdminAddress]):
    """The type of `--admin-address`: a URL becomes an AdminUrl, anything else a path."""

    name = "path"

    def convert(self, value: Any, _param: click.Parameter | None, _context: click.Context | None) -> AdminAddress:
        """Return an AdminUrl for a text that begins with `http://`, and a path for any other text."""
        if isinstance(value, Path | AdminUrl):
            return value
        return AdminUrl(value) if value.startswith("http://") else Path(value)


class _UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("limits", timeout=RESPONSE_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the Unix socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(RESPONSE_TIMEOUT_S)
        with shorten_socket_path(self._path) as address:
            self.sock.connect(address)


def socket_option(command: F) -> F:
    """Add the option `--admin-address` (parameter `path`) to a command."""
    return click.option(
        "--admin-address",
        "path",
        cls=RenamedOption,
        former_names=["--socket"],
        type=_AdminAddressType(),
        default=DEFAULT_SOCKET,
        envvar="WHARF_LIMITS_SOCKET",
        show_default=True,
        help="Admin socket of the limiter. A folder, such as an agent's data folder, stands for all sockets in it; "
        f"http://127.0.0.1:port for an admin port, with the file of its token in {TOKEN_FILE_VARIABLE}.",
    )(command)


def reason_option(command: F) -> F:
    return click.option("--reason", default="", help="Reason, for the audit log.")(command)


def duration_option(default: str | None = None) -> Callable[[F], F]:
    """Return a decorator that adds the option `--duration`; it is required unless there is a default."""

    def add(command: F) -> F:
        return click.option(
            "--duration",
            "duration",
            cls=RenamedOption,
            former_names=["--for"],
            # An explicit default of None would count as a value.
            **({"required": True} if default is None else {"default": default, "show_default": True}),
            help="Duration, such as 10m or 2h.",
        )(command)

    return add


def describe_shadow_refusal(rules: list[str], *, is_banned: bool) -> str:
    """Return what would refuse an admitted request if it were not in shadow mode, in parentheses; empty if nothing would.

    `rules` are those in shadow mode that the request exceeded. A ban of an admitted request is in shadow mode.
    """
    reasons = [*rules, *(["the ban"] if is_banned else [])]
    return f" (shadow mode: {' and '.join(reasons)} would refuse)" if reasons else ""


def describe_outage(fallback_processes: int | None) -> str:
    """Return a line that says how a process decides without the store of counters; empty without an outage."""
    if not fallback_processes:
        return ""
    return (
        f"without the store of counters, which does not reply: this process admits up to 1/{fallback_processes} of each limit "
        f'(`fallback_processes = {fallback_processes}`), and "used" includes the other shares; see `on_store_loss` of the rules'
    )


def parse_duration_ms(duration: str) -> int:
    """Return a duration such as `10m` in milliseconds. Raises click.BadParameter."""
    from wharf.limits.rules.values import DURATION, InvalidValue

    try:
        return int(DURATION.read(duration))
    except InvalidValue as problem:
        raise click.BadParameter(str(problem), param_hint="--duration") from None


def parse_time_ms(text: str) -> int:
    """Return a time of `--until`, which must have a UTC offset, as Unix milliseconds. Raises click.BadParameter."""
    from wharf.cli.common.times import parse_time

    try:
        time = parse_time(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise click.BadParameter(
            f'expected a time with its UTC offset such as 2027-01-31T12:00:00Z, got "{text}"', param_hint="--until"
        )
    return int(time.timestamp() * 1_000)


def parse_since(text: str) -> str:
    """Return the time of `--since` as the API has it; the text is a time or a duration before now."""
    from wharf.cli.common.times import format_utc_time, parse_time
    from wharf.limits.rules.values import DURATION, InvalidValue
    from wharf.world import RealWorld

    with contextlib.suppress(InvalidValue):
        return format_utc_time(max(NS_PER_SECOND, RealWorld().now_ns() - int(DURATION.read(text)) * 1_000_000))
    try:
        return parse_time(text).isoformat()
    except ValueError:
        raise click.BadParameter(
            f'expected a time such as 2027-01-31T12:00:00Z or a duration such as 1h, got "{text}"', param_hint="--since"
        ) from None


def list_admin_addresses(address: AdminAddress) -> list[AdminAddress]:
    """Return the address, or those of all admin sockets if it is a folder. Raises CliError if the folder has none."""
    if isinstance(address, AdminUrl) or not address.is_dir():
        return [address]
    found = sorted(
        {file for name in ("limits-*.sock", "admin.sock") for file in address.glob(name) if file.is_socket()}
    )
    if not found:
        raise CliError(
            f"no limiter listens in {address}: give its socket, or the data folder of an agent with limits.enabled"
        )
    return [*found]


def query_limiter(address: AdminAddress, target: str) -> Any:
    """Send a GET request to the first limiter of the address that replies without an error; return the JSON reply."""
    *first_addresses, last = list_admin_addresses(address)
    for candidate in first_addresses:
        with contextlib.suppress(CliError):
            return _request_json(candidate, "GET", target, None)
    return _request_json(last, "GET", target, None)


def query_all_limiters(address: AdminAddress, target: str) -> list[Any]:
    return [_request_json(each_address, "GET", target, None) for each_address in list_admin_addresses(address)]


def post_action(address: AdminAddress, target: str, **fields: object) -> Any:
    """Send an action to one limiter, which shares it with the other processes; return the JSON reply.

    If it does not know what the action is about, such as a caller that only another process has seen, the next one is asked.
    `fields` are the JSON fields of the action; the user's name is added.
    """
    body = _build_action_body(fields)
    addresses = list_admin_addresses(address)
    for candidate in addresses[:-1]:
        with contextlib.suppress(UnknownNameError):
            return _request_json(candidate, "POST", target, body)
    try:
        return _request_json(addresses[-1], "POST", target, body)
    except UnknownNameError as error:
        if len(addresses) == 1:
            raise
        raise CliError(f"{error.format_message()} All {len(addresses)} processes of {address} were asked.") from None


def post_action_to_all(address: AdminAddress, target: str, **fields: object) -> list[Any]:
    """Send an action that concerns only the process that receives it to every limiter of the address."""
    body = _build_action_body(fields)
    return [_request_json(each_address, "POST", target, body) for each_address in list_admin_addresses(address)]


def _build_action_body(fields: Mapping[str, object]) -> str:
    """Return the JSON body of an action: the user's name and the fields that are not None."""
    return json.dumps({"by": getpass.getuser(), **{name: value for name, value in fields.items() if value is not None}})


def query_text(address: AdminAddress, target: str) -> str:
    return _request_text(list_admin_addresses(address)[0], target)


def query_text_of_all(address: AdminAddress, target: str) -> dict[str, str]:
    """Return the text reply of each limiter, by the name of its process."""
    return {
        str(each_address).rpartition("/")[2].removesuffix(".sock"): _request_text(each_address, target)
        for each_address in list_admin_addresses(address)
    }


def _request_text(address: AdminAddress, target: str) -> str:
    """Send a GET request and return the text reply. Raises CliError with the limiter's message."""
    status, content = _send(address, "GET", target, None)
    if status != 200:
        raise CliError(json.loads(content)["message"])
    return content.decode()


def _request_json(address: AdminAddress, method: str, target: str, body: str | None) -> Any:
    """Send a request and return the JSON reply. Raises CliError with the limiter's message."""
    status, content = _send(address, method, target, body)
    reply = json.loads(content)
    if status != 200:
        raise (UnknownNameError if status == 404 else CliError)(reply["message"])
    return reply


def _send(address: AdminAddress, method: str, target: str, body: str | None) -> tuple[int, bytes]:
    """Send one HTTP request and return status and content. Raises CliError if no limiter replies."""
    connection: http.client.HTTPConnection
    headers: dict[str, str] = {}
    if isinstance(address, AdminUrl):
        connection, headers = _prepare_port_connection(address)
    else:
        connection = _UnixConnection(address)
    # The timeout of the connection applies to each read, so a reply in small parts could last forever.
    has_expired = threading.Event()
    timer: threading.Timer | None = None
    try:
        with announce_wait(f"a reply from the limiter at {address}"):
            connection.connect()
            timer = threading.Timer(RESPONSE_TIMEOUT_S, _end_connection, (connection.sock, has_expired))
            timer.daemon = True
            timer.start()
            connection.request(method, target, body, headers)
            reply = connection.getresponse()
            content = reply.read(MAX_RESPONSE_BYTES + 1)
        if has_expired.is_set():
            raise TimeoutError(f"the reply was not complete after {RESPONSE_TIMEOUT_S:g} s")
        if len(content) > MAX_RESPONSE_BYTES:
            raise OSError(f"the reply has more than {MAX_RESPONSE_BYTES:,} bytes")
        return reply.status, content
    except (FileNotFoundError, ConnectionRefusedError):
        raise CliError(
            f"no limiter listens at {address}: start `wharf gateway`, or give its socket with --admin-address"
        ) from None
    except (OSError, http.client.HTTPException) as problem:
        raise CliError(f"no reply from the limiter at {address}: {problem}") from None
    finally:
        if timer is not None:
            timer.cancel()
        connection.close()


def iterate_events(address: AdminAddress, target: str, *, after_id: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the events of a stream as tuples of id, name and data, until the limiter ends it.

    Raises CliError if the limiter refuses, and OSError or http.client.HTTPException if the connection is lost.
    """
    connection: http.client.HTTPConnection
    headers: dict[str, str] = {}
    if isinstance(address, AdminUrl):
        connection, headers = _prepare_port_connection(address)
    else:
        connection = _UnixConnection(address)
    if after_id:
        headers["Last-Event-ID"] = after_id
    try:
        # The limiter sends a comment every 15 s, so the timeout of a read notices a dead connection.
        connection.request("GET", target, None, headers)
        reply = connection.getresponse()
        if reply.status != 200:
            raise CliError(json.loads(reply.read(MAX_EVENT_LINE_BYTES))["message"])
        fields: dict[str, str] = {}
        while line := reply.readline(MAX_EVENT_LINE_BYTES + 1):
            if len(line) > MAX_EVENT_LINE_BYTES:
                raise CliError(f"the limiter at {address} sent a line of more than {MAX_EVENT_LINE_BYTES:,} bytes")
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
                continue
            if "data" in fields:
                yield fields.get("id", ""), fields.get("event", ""), fields["data"]
            fields = {}
    finally:
        connection.close()


def _end_connection(opened: socket.socket, has_expired: threading.Event) -> None:
    """End all reads of a connection, from another thread."""
    has_expired.set()
    with contextlib.suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)


def _prepare_port_connection(url: AdminUrl) -> tuple[http.client.HTTPConnection, dict[str, str]]:
    """Return an unopened connection to an admin port and the headers with its token. Raises CliError.

    The token is read from a file only, because other users can see the arguments of a command.
    """
    file = os.environ.get(TOKEN_FILE_VARIABLE, "")
    if not file:
        raise CliError(
            f"{url} requires the limiter's token: set {TOKEN_FILE_VARIABLE} to the file that `admin_token_file` names"
        )
    try:
        token = Path(file).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise CliError(f"cannot read {file}: {getattr(problem, 'strerror', None) or problem}") from None
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None:
        raise CliError(f"invalid address {url}: expected http://127.0.0.1:port")
    connection = http.client.HTTPConnection(host, port, timeout=RESPONSE_TIMEOUT_S)
    return connection, {"Authorization": f"Bearer {token}"}
