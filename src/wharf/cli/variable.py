"""`wharf var`: values that are kept encrypted, and locks on them."""

import contextlib
import subprocess
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.server_commands import QuietServerCommand, ServerCommand, Session
from wharf.cli.completion import complete_variables
from wharf.cli.lazy_group import CommandEntry, LazyGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wharf.contract.wire.variables import VariableView

MODULE: Final = "wharf.cli.variable"
COMMANDS: Final = {
    "list": CommandEntry(MODULE, "list_", "List variables, without what is in them."),
    "get": CommandEntry(MODULE, "get", "Print a variable with its items, or one of them."),
    "put": CommandEntry(MODULE, "put", "Write a variable."),
    "purge": CommandEntry(MODULE, "purge", "Delete a variable."),
    "lock": CommandEntry(MODULE, "lock", "Run a program while holding the lock of a variable."),
}
path_argument = click.argument("path", shell_complete=complete_variables)
RENEWALS_PER_TTL: Final = 3
"""So often a lock is renewed within its time."""


@click.group(cls=LazyGroup, entries=COMMANDS)
def var() -> None:
    """Keep values encrypted, and lock them."""


@click.command("list", cls=ServerCommand)
@click.argument("prefix", default="", shell_complete=complete_variables)
def list_(session: Session, prefix: str) -> None:
    """List variables, without what is in them.

    wharf var list jobs/web
    """
    from wharf.cli.common.rendering import render_table

    records = session.client.variables.list(prefix=prefix).value
    rows = [(one.namespace, one.path, session.format_time(one.modify_time)) for one in records]
    session.print_result(
        records, lambda: render_table(("Namespace", "Path", "Modified"), rows) if rows else "There are no variables."
    )


@click.command(cls=ServerCommand)
@path_argument
@click.option("--item", help="Only the value of this one, as it is.")
def get(session: Session, path: str, item: str | None) -> None:
    """Print a variable with its items, or one of them.

    wharf var get --item password jobs/web/db
    """
    from wharf.cli.common.rendering import render_pairs, render_section
    from wharf.contract.client.errors import NotFound

    try:
        one = session.client.variables.read(path).value
    except NotFound as error:
        raise CliError(f"there is no variable {path} in {session.namespace}; `wharf var list` lists all") from error
    items = one.items if isinstance(one.items, dict) else {}
    if item is not None:
        if item not in items:
            raise CliError(f"{path} has no item {item}; it has {', '.join(sorted(items)) or 'none'}")
        click.echo(items[item])
        return
    head = render_pairs([("Namespace", one.namespace), ("Path", one.path), ("Modified", session.format_time(one.modify_time)),
                  ("Check index", one.modify_index)])  # fmt: skip
    session.print_result(one, lambda: head + "\n" + render_section("Items", render_pairs(sorted(items.items()))))


@click.command(cls=ServerCommand)
@path_argument
@click.argument("items", nargs=-1, metavar="KEY=VALUE...")
@click.option(
    "--in", "file", type=click.Path(allow_dash=True), help="JSON or YAML with Items, or with the items alone."
)
@click.option("--check-index", type=click.IntRange(0), help="Only over this ModifyIndex; 0: only if it is new.")
@click.option("--force", is_flag=True, hidden=True)
def put(
    session: Session,
    path: str,
    items: tuple[str, ...],
    file: str | None,
    check_index: int | None,
    force: bool,  # noqa: ARG001  # Writing without --check-index is that.
) -> None:
    """Write a variable.

    The items take the place of those that were there. KEY=@FILE takes a file's text as the value.

    wharf var put jobs/web/db user=web password=@secret.txt
    """
    from wharf.cli.common.documents import read_document, read_text
    from wharf.cli.common.options import parse_key_values

    found: dict[str, str] = {}
    if file is not None:
        name, document = read_document(file)
        document = document.get("Items", document) if isinstance(document, dict) else None
        if not isinstance(document, dict):
            raise CliError(f"{name}: expected a map of items")
        found = {str(key): str(value) for key, value in document.items()}
    given = parse_key_values(items, "item") or {}
    found |= {key: read_text(value[1:]) if value.startswith("@") else value for key, value in given.items()}
    if not found:
        raise CliError(f"name an item: `wharf var put {path} key=value`")
    with _in_conflict_told(path):
        one = session.client.variables.put(path, found, cas=check_index)
    session.print_result(one, lambda: f"{path} is written, at index {one.modify_index}")


@click.command(cls=QuietServerCommand)
@path_argument
@click.option("--check-index", type=click.IntRange(0), help="Only over this ModifyIndex.")
def purge(session: Session, path: str, check_index: int | None) -> None:
    """Delete a variable.

    wharf var purge jobs/web/db
    """
    with _in_conflict_told(path):
        session.client.variables.delete(path, cas=check_index)
    click.echo(f"{path} is deleted")


@click.command(
    cls=QuietServerCommand, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@path_argument
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--ttl", default="15s", show_default=True, help="How long the lock outlives whoever holds it.")
@click.option("--delay", default="15s", show_default=True, help="How long nobody gets it after it was lost.")
def lock(session: Session, path: str, command: tuple[str, ...], ttl: str, delay: str) -> None:
    """Run a program while holding the lock of a variable.

    It waits for the lock, renews it while the program runs, and gives it back. The exit code is the program's; 1 where
    the lock was lost, and then the program is ended.

    wharf var lock locks/nightly ./nightly.sh
    """
    from wharf.contract.wire.times import DurationError, parse_duration_ns

    try:
        renew_every_s = parse_duration_ns(ttl) / 1e9 / RENEWALS_PER_TTL
    except DurationError:
        raise CliError(f"--ttl {ttl}: expected a length of time, as 15s") from None
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise CliError(f"name a program: `wharf var lock {path} ./nightly.sh`")
    held = _acquire(session, path, ttl, delay)
    try:
        code = _run_holding(session, path, held, words, renew_every_s)
    finally:
        _release(session, path, held)
    raise click.exceptions.Exit(code)


@contextlib.contextmanager
def _in_conflict_told(path: str) -> "Iterator[None]":
    """Inside, a variable that is not as it was expected ends the command with a sentence. What servers send then is the
    variable itself, with its items, and is for programs.
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
            raise CliError(f"{path} was changed: its check index is {index}; `wharf var get {path}` shows it") from None
        raise CliError(
            f"{path} is not there any more, or somebody holds its lock; `wharf var get {path}` shows it"
        ) from None


def _acquire(session: Session, path: str, ttl: str, delay: str) -> str:
    from wharf.contract.client.errors import Conflict

    index = 0
    while True:
        try:
            one = session.client.variables.acquire_lock(path, ttl=ttl, lock_delay=delay)
        except Conflict:
            answer = session.client.variables.read(path, index=index, wait_s=5.0)
            index = answer.index
            continue
        return _lock_id(one)


def _lock_id(one: "VariableView") -> str:
    import msgspec

    assert not isinstance(one.lock, msgspec.UnsetType)
    assert isinstance(one.lock.id, str)
    return one.lock.id


def _run_holding(session: Session, path: str, lock_id: str, command: tuple[str, ...], renew_every_s: float) -> int:
    from wharf.contract.client.errors import RequestRefused

    try:
        child = subprocess.Popen(command)
    except OSError as error:
        raise CliError(f"{command[0]} cannot be run: {error.strerror}") from error
    while True:
        try:
            return _code_of(child.wait(timeout=renew_every_s))
        except subprocess.TimeoutExpired:
            pass
        except KeyboardInterrupt:
            child.terminate()
            return _code_of(child.wait())
        try:
            session.client.variables.renew_lock(path, lock_id)
        except RequestRefused as error:
            child.terminate()
            child.wait()
            raise CliError(f"the lock of {path} was lost, and the program ended: {error.text}") from error


def _code_of(returned: int) -> int:
    """What a shell says of a program that a signal ended."""
    return returned if returned >= 0 else 128 - returned


def _release(session: Session, path: str, lock_id: str) -> None:
    from wharf.contract.client.errors import RequestRefused

    try:
        session.client.variables.release_lock(path, lock_id)
    except RequestRefused as error:
        click.echo(f"note: the lock of {path} was not given back: {error.text}", err=True)
