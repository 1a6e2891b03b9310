"""How commands ask a limiter that runs: over its Unix socket, or its port on this machine; each question once."""

import contextlib
import getpass
import http.client
import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import click

from wharf.cli.common.errors import CliError

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SOCKET: Final = ".wharf/limits/admin.sock"
RESPONSE_TIMEOUT_S: Final = 30.0
TOKEN_FILE_VARIABLE: Final = "WHARF_LIMITS_TOKEN_FILE"


class AdminUrl(str):
    """The address of a limiter's port for operators, as `http://127.0.0.1:9090`."""


AdminAddress = Path | AdminUrl


class _WhereType(click.ParamType[AdminAddress]):
    name = "path"

    def convert(self, value: Any, _param: click.Parameter | None, _context: click.Context | None) -> AdminAddress:
        if isinstance(value, Path | AdminUrl):
            return value
        return AdminUrl(value) if value.startswith("http://") else Path(value)


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("limits", timeout=RESPONSE_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(RESPONSE_TIMEOUT_S)
        self.sock.connect(str(self._path))


def socket_option(command: F) -> F:
    return click.option(
        "--socket",
        "path",
        type=_WhereType(),
        default=DEFAULT_SOCKET,
        envvar="WHARF_LIMITS_SOCKET",
        show_default=True,
        help="Where the limiter listens for operators. In a folder, such as an agent's data folder, all are asked. "
        f"Over a port: http://127.0.0.1:port, with {TOKEN_FILE_VARIABLE} naming the file of its token.",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def reason_option(command: F) -> F:
    return click.option("--reason", default="", help="Why, for the audit log.")(command)


def duration_option(default: str | None = None) -> Callable[[F], F]:
    def add(command: F) -> F:
        return click.option(
            "--for",
            "length",
            default=default,
            required=default is None,
            show_default=default is not None,
            help="How long, as 10m or 2h.",
        )(command)

    return add


def parse_duration_ms(duration: str) -> int:
    from wharf.limits.rules.values import DURATION, InvalidValue

    try:
        return int(DURATION.read(duration))
    except InvalidValue as problem:
        raise click.BadParameter(str(problem), param_hint="--for") from None


def parse_time_ms(text: str) -> int:
    from wharf.cli.common.times import parse_time

    try:
        moment = parse_time(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise click.BadParameter(
            f"{text!r} is no moment: write it with its offset, as 2027-01-31T12:00:00Z", param_hint="--until"
        )
    return int(moment.timestamp() * 1_000)


def parse_since(text: str) -> str:
    """The moment that is meant by a date, or by a length before now."""
    from wharf.cli.common.times import format_utc_time, parse_time
    from wharf.limits.rules.values import DURATION, InvalidValue
    from wharf.world import RealWorld

    with contextlib.suppress(InvalidValue):
        return format_utc_time(max(1_000_000_000, RealWorld().now_ns() - int(DURATION.read(text)) * 1_000_000))
    try:
        return parse_time(text).isoformat()
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a moment, as 2027-01-31T12:00:00Z, nor a length, as 1h", param_hint="--since"
        ) from None


def list_admin_addresses(address: AdminAddress) -> list[AdminAddress]:
    """The limiters that are meant: those of all processes, where a folder is named."""
    if isinstance(address, AdminUrl) or not address.is_dir():
        return [address]
    found = sorted(
        {file for name in ("limits-*.sock", "admin.sock") for file in address.glob(name) if file.is_socket()}
    )
    if not found:
        raise CliError(
            f"no limiter listens in {address}: name its socket, or the data folder of an agent with limits.enabled"
        )
    return [*found]


def query_limiter(address: AdminAddress, target: str) -> Any:
    """The first that can tell."""
    *others, last = list_admin_addresses(address)
    for each in others:
        with contextlib.suppress(CliError):
            return _exchange(each, "GET", target, None)
    return _exchange(last, "GET", target, None)


def query_all_limiters(address: AdminAddress, target: str) -> list[Any]:
    return [_exchange(each, "GET", target, None) for each in list_admin_addresses(address)]


def post_action(address: AdminAddress, target: str, **facts: object) -> Any:
    """Do something, in the name of who runs the command."""
    # What holds for all processes, the one that hears of it leaves where the others look.
    return _exchange(list_admin_addresses(address)[0], "POST", target, _act_of(facts))


def post_action_to_all(address: AdminAddress, target: str, **facts: object) -> list[Any]:
    """Do what each process does for itself."""
    return [_exchange(each, "POST", target, _act_of(facts)) for each in list_admin_addresses(address)]


def _act_of(facts: Mapping[str, object]) -> str:
    return json.dumps({"by": getpass.getuser(), **{name: value for name, value in facts.items() if value is not None}})


def query_text(address: AdminAddress, target: str) -> str:
    return _ask_text(list_admin_addresses(address)[0], target)


def query_text_of_all(address: AdminAddress, target: str) -> dict[str, str]:
    """What each process says, by its name."""
    return {
        str(each).rpartition("/")[2].removesuffix(".sock"): _ask_text(each, target)
        for each in list_admin_addresses(address)
    }


def _ask_text(path: AdminAddress, target: str) -> str:
    status, told = _send(path, "GET", target, None)
    if status != 200:
        raise CliError(json.loads(told)["message"])
    return told.decode()


def _exchange(path: AdminAddress, method: str, target: str, body: str | None) -> Any:
    status, told = _send(path, method, target, body)
    found = json.loads(told)
    if status != 200:
        raise CliError(found["message"])
    return found


def _send(path: AdminAddress, method: str, target: str, body: str | None) -> tuple[int, bytes]:
    connection: http.client.HTTPConnection
    headers: dict[str, str] = {}
    if isinstance(path, AdminUrl):
        connection, headers = _connection_to(path)
    else:
        connection = _Connection(path)
    try:
        connection.request(method, target, body, headers)
        reply = connection.getresponse()
        return reply.status, reply.read()
    except (FileNotFoundError, ConnectionRefusedError):
        raise CliError(
            f"no limiter listens at {path}: start `wharf gateway`, or name its socket with --socket"
        ) from None
    except (OSError, http.client.HTTPException) as problem:
        raise CliError(f"the limiter at {path} cannot be asked: {problem}") from None
    finally:
        connection.close()


def _connection_to(port: AdminUrl) -> tuple[http.client.HTTPConnection, dict[str, str]]:
    """A connection, and what is shown there. The token is only read from a file: others see the words of a command."""
    file = os.environ.get(TOKEN_FILE_VARIABLE, "")
    if not file:
        raise CliError(
            f"{port} needs the limiter's token: set {TOKEN_FILE_VARIABLE} to the file that `admin_token_file` names"
        )
    try:
        token = Path(file).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise CliError(f"{file} cannot be read: {getattr(problem, 'strerror', None) or problem}") from None
    address = urlsplit(port)
    try:
        host, number = address.hostname, address.port
    except ValueError:
        host = number = None
    if host is None or number is None:
        raise CliError(f"{port} is no address: write http://127.0.0.1:port")
    connection = http.client.HTTPConnection(host, number, timeout=RESPONSE_TIMEOUT_S)
    return connection, {"Authorization": f"Bearer {token}"}


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))
