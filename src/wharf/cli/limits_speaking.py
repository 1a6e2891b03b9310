"""How commands ask a limiter that runs: over its Unix socket, each question once."""

import contextlib
import getpass
import http.client
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from wharf.cli.failing import Failed

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SOCKET: Final = ".wharf/limits/admin.sock"
ANSWERS_WITHIN_S: Final = 30.0


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
        type=click.Path(path_type=Path),
        default=DEFAULT_SOCKET,
        envvar="WHARF_LIMITS_SOCKET",
        show_default=True,
        help="Where the limiter listens for operators. In a folder, such as an agent's data folder, all are asked.",
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


def sockets_at(path: Path) -> list[Path]:
    """The limiters that are meant: those of all processes, where a folder is named."""
    if not path.is_dir():
        return [path]
    found = sorted({file for name in ("limits-*.sock", "admin.sock") for file in path.glob(name) if file.is_socket()})
    if not found:
        raise Failed(
            f"no limiter listens in {path}: name its socket, or the data folder of an agent with limits.enabled"
        )
    return found


def ask(path: Path, target: str) -> Any:
    """The first that can tell."""
    *others, last = sockets_at(path)
    for each in others:
        with contextlib.suppress(Failed):
            return _exchange(each, "GET", target, None)
    return _exchange(last, "GET", target, None)


def ask_all(path: Path, target: str) -> list[Any]:
    return [_exchange(each, "GET", target, None) for each in sockets_at(path)]


def act(path: Path, target: str, **facts: object) -> Any:
    """Do something, in the name of who runs the command."""
    body = {"by": getpass.getuser(), **{name: value for name, value in facts.items() if value is not None}}
    # What holds for all processes, the one that hears of it leaves where the others look.
    return _exchange(sockets_at(path)[0], "POST", target, json.dumps(body))


def ask_text(path: Path, target: str) -> str:
    return _send(sockets_at(path)[0], "GET", target, None)[1].decode()


def _exchange(path: Path, method: str, target: str, body: str | None) -> Any:
    status, told = _send(path, method, target, body)
    found = json.loads(told)
    if status != 200:
        raise Failed(found["message"])
    return found


def _send(path: Path, method: str, target: str, body: str | None) -> tuple[int, bytes]:
    connection = _Connection(path)
    try:
        connection.request(method, target, body)
        reply = connection.getresponse()
        return reply.status, reply.read()
    except (FileNotFoundError, ConnectionRefusedError):
        raise Failed(f"no limiter listens at {path}: start `wharf gateway`, or name its socket with --socket") from None
    except (OSError, http.client.HTTPException) as problem:
        raise Failed(f"the limiter at {path} cannot be asked: {problem}") from None
    finally:
        connection.close()


def show_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))
