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

from wharf.cli.failing import Failed

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SOCKET: Final = ".wharf/limits/admin.sock"
ANSWERS_WITHIN_S: Final = 30.0
TOKEN_FILE: Final = "WHARF_LIMITS_TOKEN_FILE"


class Port(str):
    """The address of a limiter's port for operators, as `http://127.0.0.1:9090`."""


Where = Path | Port


class _WhereType(click.ParamType[Where]):
    name = "path"

    def convert(self, value: Any, _param: click.Parameter | None, _context: click.Context | None) -> Where:
        if isinstance(value, Path | Port):
            return value
        return Port(value) if value.startswith("http://") else Path(value)


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("limits", timeout=ANSWERS_WITHIN_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(ANSWERS_WITHIN_S)
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
        f"Over a port: http://127.0.0.1:port, with {TOKEN_FILE} naming the file of its token.",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def reason_option(command: F) -> F:
    return click.option("--reason", default="", help="Why, for the audit log.")(command)


def for_option(default: str | None = None) -> Callable[[F], F]:
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


def milliseconds(length: str) -> int:
    from wharf.limits.rules.values import DURATION, Unfit

    try:
        return int(DURATION.read(length))
    except Unfit as problem:
        raise click.BadParameter(str(problem), param_hint="--for") from None


def moment_ms(text: str) -> int:
    from wharf.cli.moments import read_date

    try:
        moment = read_date(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise click.BadParameter(
            f"{text!r} is no moment: write it with its offset, as 2027-01-31T12:00:00Z", param_hint="--until"
        )
    return int(moment.timestamp() * 1_000)


def beginning(text: str) -> str:
    """The moment that is meant by a date, or by a length before now."""
    from wharf.cli.moments import read_date, say_date
    from wharf.limits.rules.values import DURATION, Unfit
    from wharf.world import RealWorld

    with contextlib.suppress(Unfit):
        return say_date(max(1_000_000_000, RealWorld().now_ns() - int(DURATION.read(text)) * 1_000_000))
    try:
        return read_date(text).isoformat()
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a moment, as 2027-01-31T12:00:00Z, nor a length, as 1h", param_hint="--since"
        ) from None


def sockets_at(path: Where) -> list[Where]:
    """The limiters that are meant: those of all processes, where a folder is named."""
    if isinstance(path, Port) or not path.is_dir():
        return [path]
    found = sorted({file for name in ("limits-*.sock", "admin.sock") for file in path.glob(name) if file.is_socket()})
    if not found:
        raise Failed(
            f"no limiter listens in {path}: name its socket, or the data folder of an agent with limits.enabled"
        )
    return [*found]


def ask(path: Where, target: str) -> Any:
    """The first that can tell."""
    *others, last = sockets_at(path)
    for each in others:
        with contextlib.suppress(Failed):
            return _exchange(each, "GET", target, None)
    return _exchange(last, "GET", target, None)


def ask_all(path: Where, target: str) -> list[Any]:
    return [_exchange(each, "GET", target, None) for each in sockets_at(path)]


def act(path: Where, target: str, **facts: object) -> Any:
    """Do something, in the name of who runs the command."""
    # What holds for all processes, the one that hears of it leaves where the others look.
    return _exchange(sockets_at(path)[0], "POST", target, _act_of(facts))


def act_on_all(path: Where, target: str, **facts: object) -> list[Any]:
    """Do what each process does for itself."""
    return [_exchange(each, "POST", target, _act_of(facts)) for each in sockets_at(path)]


def _act_of(facts: Mapping[str, object]) -> str:
    return json.dumps({"by": getpass.getuser(), **{name: value for name, value in facts.items() if value is not None}})


def ask_text(path: Where, target: str) -> str:
    return _ask_text(sockets_at(path)[0], target)


def ask_text_of_all(path: Where, target: str) -> dict[str, str]:
    """What each process says, by its name."""
    return {str(each).rpartition("/")[2].removesuffix(".sock"): _ask_text(each, target) for each in sockets_at(path)}


def _ask_text(path: Where, target: str) -> str:
    status, told = _send(path, "GET", target, None)
    if status != 200:
        raise Failed(json.loads(told)["message"])
    return told.decode()


def _exchange(path: Where, method: str, target: str, body: str | None) -> Any:
    status, told = _send(path, method, target, body)
    found = json.loads(told)
    if status != 200:
        raise Failed(found["message"])
    return found


def _send(path: Where, method: str, target: str, body: str | None) -> tuple[int, bytes]:
    connection: http.client.HTTPConnection
    headers: dict[str, str] = {}
    if isinstance(path, Port):
        connection, headers = _connection_to(path)
    else:
        connection = _Connection(path)
    try:
        connection.request(method, target, body, headers)
        reply = connection.getresponse()
        return reply.status, reply.read()
    except (FileNotFoundError, ConnectionRefusedError):
        raise Failed(f"no limiter listens at {path}: start `wharf gateway`, or name its socket with --socket") from None
    except (OSError, http.client.HTTPException) as problem:
        raise Failed(f"the limiter at {path} cannot be asked: {problem}") from None
    finally:
        connection.close()


def _connection_to(port: Port) -> tuple[http.client.HTTPConnection, dict[str, str]]:
    """A connection, and what is shown there. The token is only read from a file: others see the words of a command."""
    file = os.environ.get(TOKEN_FILE, "")
    if not file:
        raise Failed(f"{port} needs the limiter's token: set {TOKEN_FILE} to the file that `admin_token_file` names")
    try:
        token = Path(file).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise Failed(f"{file} cannot be read: {getattr(problem, 'strerror', None) or problem}") from None
    address = urlsplit(port)
    try:
        host, number = address.hostname, address.port
    except ValueError:
        host = number = None
    if host is None or number is None:
        raise Failed(f"{port} is no address: write http://127.0.0.1:port")
    connection = http.client.HTTPConnection(host, number, timeout=ANSWERS_WITHIN_S)
    return connection, {"Authorization": f"Bearer {token}"}


def show_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))
