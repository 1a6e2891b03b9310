"""`wharf var`: values that are kept encrypted, and locks on them."""

import contextlib
import subprocess
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.completing import complete_variables
from wharf.cli.failing import Failed
from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Quiet, Speaking, Talk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wharf.wire.variables import VariableShown

HERE: Final = "wharf.cli.variable"
COMMANDS: Final = {
    "list": Entry(HERE, "list_", "List variables, without what is in them."),
    "get": Entry(HERE, "get", "Print a variable with its items, or one of them."),
    "put": Entry(HERE, "put", "Write a variable."),
    "purge": Entry(HERE, "purge", "Delete a variable."),
    "lock": Entry(HERE, "lock", "Run a program while holding the lock of a variable."),
}
a_path = click.argument("path", shell_complete=complete_variables)
RENEWALS: Final = 3
"""So often a lock is renewed within its time."""


@click.group(cls=LazyGroup, entries=COMMANDS)
def var() -> None:
    """Keep values encrypted, and lock them."""


@click.command("list", cls=Speaking)
@click.argument("prefix", default="", shell_complete=complete_variables)
def list_(talk: Talk, prefix: str) -> None:
    """List variables, without what is in them.

    wharf var list jobs/web
    """
    from wharf.cli.tables import table

    records = talk.client.variables.list(prefix=prefix).value
    rows = [(one.namespace, one.path, talk.when(one.modify_time)) for one in records]
    talk.show(records, lambda: table(("Namespace", "Path", "Modified"), rows) if rows else "There are no variables.")


@click.command(cls=Speaking)
@a_path
@click.option("--item", help="Only the value of this one, as it is.")
def get(talk: Talk, path: str, item: str | None) -> None:
    """Print a variable with its items, or one of them.

    wharf var get --item password jobs/web/db
    """
    from wharf.cli.tables import pairs, section
    from wharf.client.errors import NotFound

    try:
        one = talk.client.variables.read(path).value
    except NotFound as error:
        raise Failed(f"there is no variable {path} in {talk.namespace}; `wharf var list` lists all") from error
    items = one.items if isinstance(one.items, dict) else {}
    if item is not None:
        if item not in items:
            raise Failed(f"{path} has no item {item}; it has {', '.join(sorted(items)) or 'none'}")
        click.echo(items[item])
        return
    head = pairs([("Namespace", one.namespace), ("Path", one.path), ("Modified", talk.when(one.modify_time)),
                  ("Check index", one.modify_index)])  # fmt: skip
    talk.show(one, lambda: head + "\n" + section("Items", pairs(sorted(items.items()))))


@click.command(cls=Speaking)
@a_path
@click.argument("items", nargs=-1, metavar="KEY=VALUE...")
@click.option(
    "--in", "file", type=click.Path(allow_dash=True), help="JSON or YAML with Items, or with the items alone."
)
@click.option("--check-index", type=click.IntRange(0), help="Only over this ModifyIndex; 0: only if it is new.")
@click.option("--force", is_flag=True, hidden=True)
def put(
    talk: Talk,
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
    from wharf.cli.job_changes import keys_and_values
    from wharf.cli.records import read_document, read_text

    found: dict[str, str] = {}
    if file is not None:
        name, document = read_document(file)
        document = document.get("Items", document) if isinstance(document, dict) else None
        if not isinstance(document, dict):
            raise Failed(f"{name}: expected a map of items")
        found = {str(key): str(value) for key, value in document.items()}
    given = keys_and_values(items, "item") or {}
    found |= {key: read_text(value[1:]) if value.startswith("@") else value for key, value in given.items()}
    if not found:
        raise Failed(f"name an item: `wharf var put {path} key=value`")
    with _in_conflict_told(path):
        one = talk.client.variables.put(path, found, cas=check_index)
    talk.show(one, lambda: f"{path} is written, at index {one.modify_index}")


@click.command(cls=Quiet)
@a_path
@click.option("--check-index", type=click.IntRange(0), help="Only over this ModifyIndex.")
def purge(talk: Talk, path: str, check_index: int | None) -> None:
    """Delete a variable.

    wharf var purge jobs/web/db
    """
    with _in_conflict_told(path):
        talk.client.variables.delete(path, cas=check_index)
    click.echo(f"{path} is deleted")


@click.command(cls=Quiet, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@a_path
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--ttl", default="15s", show_default=True, help="How long the lock outlives whoever holds it.")
@click.option("--delay", default="15s", show_default=True, help="How long nobody gets it after it was lost.")
def lock(talk: Talk, path: str, command: tuple[str, ...], ttl: str, delay: str) -> None:
    """Run a program while holding the lock of a variable.

    It waits for the lock, renews it while the program runs, and gives it back. The exit code is the program's; 1 where
    the lock was lost, and then the program is ended.

    wharf var lock locks/nightly ./nightly.sh
    """
    from wharf.wire.go_duration import DurationError, parse_duration_ns

    try:
        renew_every_s = parse_duration_ns(ttl) / 1e9 / RENEWALS
    except DurationError:
        raise Failed(f"--ttl {ttl}: expected a length of time, as 15s") from None
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise Failed(f"name a program: `wharf var lock {path} ./nightly.sh`")
    held = _acquire(talk, path, ttl, delay)
    try:
        code = _run_holding(talk, path, held, words, renew_every_s)
    finally:
        _release(talk, path, held)
    raise click.exceptions.Exit(code)


@contextlib.contextmanager
def _in_conflict_told(path: str) -> "Iterator[None]":
    """Inside, a variable that is not as it was expected ends the command with a sentence. What servers send then is the
    variable itself, with its items, and is for programs.
    """
    import msgspec

    from wharf.client.errors import Conflict

    try:
        yield
    except Conflict as error:
        try:
            index = int(msgspec.json.decode(error.text)["ModifyIndex"])
        except (msgspec.DecodeError, KeyError, TypeError, ValueError):
            raise error from None
        if index:
            raise Failed(f"{path} was changed: its check index is {index}; `wharf var get {path}` shows it") from None
        raise Failed(
            f"{path} is not there any more, or somebody holds its lock; `wharf var get {path}` shows it"
        ) from None


def _acquire(talk: Talk, path: str, ttl: str, delay: str) -> str:
    from wharf.client.errors import Conflict

    index = 0
    while True:
        try:
            one = talk.client.variables.acquire_lock(path, ttl=ttl, lock_delay=delay)
        except Conflict:
            answer = talk.client.variables.read(path, index=index, wait_s=5.0)
            index = answer.index
            continue
        return _lock_id(one)


def _lock_id(one: "VariableShown") -> str:
    import msgspec

    assert not isinstance(one.lock, msgspec.UnsetType)
    assert isinstance(one.lock.id, str)
    return one.lock.id


def _run_holding(talk: Talk, path: str, lock_id: str, command: tuple[str, ...], renew_every_s: float) -> int:
    from wharf.client.errors import Refused

    try:
        child = subprocess.Popen(command)
    except OSError as error:
        raise Failed(f"{command[0]} cannot be run: {error.strerror}") from error
    while True:
        try:
            return _code_of(child.wait(timeout=renew_every_s))
        except subprocess.TimeoutExpired:
            pass
        except KeyboardInterrupt:
            child.terminate()
            return _code_of(child.wait())
        try:
            talk.client.variables.renew_lock(path, lock_id)
        except Refused as error:
            child.terminate()
            child.wait()
            raise Failed(f"the lock of {path} was lost, and the program ended: {error.text}") from error


def _code_of(returned: int) -> int:
    """What a shell says of a program that a signal ended."""
    return returned if returned >= 0 else 128 - returned


def _release(talk: Talk, path: str, lock_id: str) -> None:
    from wharf.client.errors import Refused

    try:
        talk.client.variables.release_lock(path, lock_id)
    except Refused as error:
        click.echo(f"note: the lock of {path} was not given back: {error.text}", err=True)
