"""`wharf var`: encrypted variables, and locks on them."""

import contextlib
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.common.times import NS_PER_SECOND
from wharf.cli.completion import complete_variables
from wharf.cli.lazy_group import CommandEntry, LazyGroup, RenamedOption

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wharf.contract.wire.variables import VariableView

MODULE: Final = "wharf.cli.variable"
COMMANDS: Final = {
    "list": CommandEntry(MODULE, "list_", "List variables, without their items."),
    "get": CommandEntry(MODULE, "get", "Print a variable with its items, or one item."),
    "put": CommandEntry(MODULE, "put", "Create or replace a variable."),
    "purge": CommandEntry(MODULE, "purge", "Delete a variable."),
    "lock": CommandEntry(MODULE, "lock", "Run a program while holding the lock of a variable."),
}
path_argument = click.argument("path", shell_complete=complete_variables)
RENEWALS_PER_TTL: Final = 3
"""How often a lock is renewed within its TTL, so that one failed renewal does not lose it."""
MAX_MISSED_RENEWALS: Final = 2
"""After this many renewals in a row without a reply the program is stopped, so that it never runs longer than its lock.

A renewal may take half of the interval. Two intervals with two renewals end within the TTL.
"""
LOCK_WAIT_S: Final = 5.0
"""How long one blocking query for a lock that is held waits."""


@click.group(cls=LazyGroup, entries=COMMANDS)
def var() -> None:
    """Store encrypted variables, and lock them."""


@click.command("list", cls=ServerCommand)
@click.argument("prefix", default="", shell_complete=complete_variables)
def list_(session: Session, prefix: str) -> None:
    """List variables, without their items.

    wharf var list jobs/web
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.variables.list(prefix=prefix).value
    rows = [(variable.namespace, variable.path, session.format_time(variable.modify_time)) for variable in records]
    titles = ("Namespace", "Path", "Modified")
    session.print_result(
        records,
        lambda: (
            render_table(titles, rows, optional_columns=("Modified", "Namespace"), shortenable_columns=("Path",))
            if rows
            else "No variables."
        ),
    )


@click.command(cls=ServerCommand)
@path_argument
@click.option("--item", help="Print only the value of this item.")
def get(session: Session, path: str, item: str | None) -> None:
    """Print a variable with its items, or one item.

    wharf var get --item password jobs/web/db
    """
    from wharf.cli.common.rendering import render_pairs, render_section
    from wharf.contract.client.errors import NotFound

    try:
        variable = session.client.variables.read(path).value
    except NotFound as error:
        raise CliError(_format_missing_variable(session, path)) from error
    items = variable.items if isinstance(variable.items, dict) else {}
    if item is not None:
        if item not in items:
            raise CliError(f"variable {path} has no item {item}; its items are {', '.join(sorted(items)) or 'none'}")
        click.echo(items[item])
        return
    head = render_pairs(
        [
            ("Namespace", variable.namespace),
            ("Path", variable.path),
            ("Modified", session.format_time(variable.modify_time)),
            ("Check index", variable.modify_index),
        ]
    )
    session.print_result(variable, lambda: head + "\n" + render_section("Items", render_pairs(sorted(items.items()))))


@click.command(cls=ServerCommand)
@path_argument
@click.argument("items", nargs=-1, metavar="KEY=VALUE...")
@click.option(
    "--file",
    "file",
    cls=RenamedOption,
    former_names=["--in"],
    type=click.Path(allow_dash=True),
    help="JSON or YAML with the field Items, or with the items themselves; - reads standard input.",
)
@click.option("--check-index", type=click.IntRange(0), help="Fail unless it has this ModifyIndex; 0: unless it is new.")
@click.option("--force", is_flag=True, hidden=True)
def put(
    session: Session,
    path: str,
    items: tuple[str, ...],
    file: str | None,
    check_index: int | None,
    force: bool,  # noqa: ARG001  # Accepted for Nomad's scripts: without --check-index, every write is forced.
) -> None:
    """Create or replace a variable.

    The given items replace all current ones. KEY=@FILE takes the text of a file as the value.

    wharf var put jobs/web/db user=web password=@secret.txt
    """
    from wharf.cli.common.documents import read_document, read_text
    from wharf.cli.common.options import parse_key_values

    new_items: dict[str, str] = {}
    if file is not None:
        name, document = read_document(file)
        document = document.get("Items", document) if isinstance(document, dict) else None
        if not isinstance(document, dict):
            raise CliError(f"{name}: expected a map of items")
        for key, value in document.items():
            if not isinstance(value, str):
                raise CliError(f"{name}: the value of {key} is not a text: put it in double quotes")
        new_items = document
    arguments = parse_key_values(items, "item", are_secret=True) or {}
    new_items |= {key: read_text(value[1:]) if value.startswith("@") else value for key, value in arguments.items()}
    if not new_items:
        raise CliError(f"missing item: `wharf var put {path} key=value`")
    with _report_conflicts(path):
        variable = session.client.variables.put(path, new_items, cas=check_index)
    session.print_result(variable, lambda: f"stored variable {path} (index {variable.modify_index})")


@click.command(cls=ServerCommand)
@path_argument
@click.option("--check-index", type=click.IntRange(0), help="Fail unless it has this ModifyIndex.")
def purge(session: Session, path: str, check_index: int | None) -> None:
    """Delete a variable.

    wharf var purge jobs/web/db
    """
    if check_index is None:
        _require_variable(session, path)
    with _report_conflicts(path):
        session.client.variables.delete(path, cas=check_index)
    session.print_change(f"deleted variable {path}", Path=path)


@click.command(
    cls=QuietServerCommand, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@path_argument
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--ttl", default="15s", show_default=True, help="Lifetime of the lock without renewals.")
@click.option(
    "--delay", default="15s", show_default=True, help="How long nobody can acquire the lock after it expired."
)
def lock(session: Session, path: str, command: tuple[str, ...], ttl: str, delay: str) -> None:
    """Run a program while holding the lock of a variable.

    Waits for the lock, renews it while the program runs, and releases it. The exit code is that of the program. If the
    lock is lost, the program is stopped and the exit code is 1.

    wharf var lock locks/nightly ./nightly.sh
    """
    from wharf.contract.model.times import DurationError, parse_duration_ns

    try:
        renewal_interval_s = parse_duration_ns(ttl) / NS_PER_SECOND / RENEWALS_PER_TTL
    except DurationError:
        raise CliError(f'--ttl: expected a duration such as 15s, got "{ttl}"') from None
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise CliError(f"missing program: `wharf var lock {path} ./nightly.sh`")
    lock_id = _acquire_lock(session, path, ttl, delay)
    try:
        code = run_with_lock(session, path, lock_id, words, renewal_interval_s)
    finally:
        _release_lock(session, path, lock_id)
    raise click.exceptions.Exit(code)


def _format_missing_variable(session: Session, path: str) -> str:
    """Return the error of a missing variable. Raises CliError if another namespace has it."""
    from wharf.cli.common.lookup import require_no_other_namespace

    def list_namespaces() -> list[str]:
        found = session.client.variables.list(prefix=path, namespace="*").value
        return [variable.namespace for variable in found if variable.path == path]

    require_no_other_namespace(session, "variable", path, list_namespaces)
    return f"variable {path} does not exist in namespace {session.namespace}; `wharf var list` lists all"


def _require_variable(session: Session, path: str) -> None:
    """Raise CliError if the variable does not exist: servers also accept the deletion of an unknown path."""
    from wharf.contract.client.errors import Forbidden, NotFound

    try:
        session.client.variables.read(path)
    except NotFound:
        raise CliError(_format_missing_variable(session, path)) from None
    except Forbidden:
        return  # The token may delete the variable, but not read it.


@contextlib.contextmanager
def _report_conflicts(path: str) -> "Iterator[None]":
    """Turn a conflict in the block into a CliError without the variable's items.

    The server's text is the current variable as JSON, with its items, which must not be printed.
    """
    import msgspec

    from wharf.contract.client.errors import Conflict

    try:
        yield
    except Conflict as error:
        try:
            index = int(msgspec.json.decode(error.text)["ModifyIndex"])
        except (msgspec.DecodeError, KeyError, TypeError, ValueError):
            raise error from None
        if index:
            raise CliError(
                f"variable {path} was changed: its check index is {index}; `wharf var get {path}` prints it"
            ) from None
        raise CliError(
            f"variable {path} does not exist or its lock is held; check with `wharf var get {path}`"
        ) from None


def _acquire_lock(session: Session, path: str, ttl: str, delay: str) -> str:
    """Wait until the lock of a variable is free, acquire it and return its id."""
    from wharf.cli.common.outages import Outage
    from wharf.contract.client.errors import Conflict

    index = 0
    outage = Outage(session, f"the program was not started, because the lock of {path} is not held")
    is_announced = False
    while True:
        try:
            variable = session.client.variables.acquire_lock(path, ttl=ttl, lock_delay=delay)
        except Conflict:
            if not is_announced:
                print_notice(f"waiting for the lock of {path}, which is held; Ctrl-C ends the command")
            is_announced = True
            response = outage.call(partial(session.client.variables.read, path, index=index, wait_s=LOCK_WAIT_S))
            index = response.index
            continue
        return _get_lock_id(variable)


def _get_lock_id(variable: "VariableView") -> str:
    import msgspec

    assert not isinstance(variable.lock, msgspec.UnsetType)
    assert isinstance(variable.lock.id, str)
    return variable.lock.id


def run_with_lock(
    session: Session, path: str, lock_id: str, command: tuple[str, ...], renewal_interval_s: float
) -> int:
    """Run a program, renew the lock meanwhile and return the exit code.

    If the lock is lost, or could not be renewed during its lifetime, stop the program and raise CliError.
    """
    from wharf.contract.client import Unreachable
    from wharf.contract.client.errors import TRANSIENT_ERRORS, RequestRefused

    try:
        child = subprocess.Popen(command)
    except OSError as error:
        raise CliError(f"cannot run {command[0]}: {error.strerror}") from error
    missed = 0
    while True:
        try:
            return _to_exit_code(child.wait(timeout=renewal_interval_s))
        except subprocess.TimeoutExpired:
            pass
        except KeyboardInterrupt:
            child.terminate()
            return _to_exit_code(child.wait())
        try:
            session.client.variables.renew_lock(path, lock_id, timeout_s=renewal_interval_s / 2)
            missed = 0
        except (RequestRefused, Unreachable) as error:
            missed += 1
            if isinstance(error, (Unreachable, *TRANSIENT_ERRORS)) and missed < MAX_MISSED_RENEWALS:
                print_notice(f"the lock of {path} was not renewed: {error}; trying again")
                continue
            child.terminate()
            child.wait()
            raise CliError(f"stopped the program because the lock of {path} was lost: {error}") from error


def _to_exit_code(return_code: int) -> int:
    """Return the exit code of a program; 128 + signal number if a signal ended it, as in shells."""
    return return_code if return_code >= 0 else 128 - return_code


def _release_lock(session: Session, path: str, lock_id: str) -> None:
    """Release the lock; if the server refuses, print a note."""
    from wharf.contract.client import Unreachable
    from wharf.contract.client.errors import RequestRefused

    try:
        session.client.variables.release_lock(path, lock_id)
    except (RequestRefused, Unreachable) as error:
        print_notice(f"note: the lock of {path} was not released: {error}; it ends after its --ttl")
