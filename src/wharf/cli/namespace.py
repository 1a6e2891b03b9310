"""`wharf namespace`: the rooms that jobs are kept apart in."""

from typing import Final

import click

from wharf.cli.completing import complete_namespaces
from wharf.cli.lazy import Entry, LazyGroup
from wharf.cli.speaking import Quiet, Speaking, Talk

HERE: Final = "wharf.cli.namespace"
COMMANDS: Final = {
    "list": Entry(HERE, "list_", "List namespaces."),
    "status": Entry(HERE, "status", "Show a namespace, and what its quota leaves."),
    "apply": Entry(HERE, "apply", "Make or change a namespace."),
    "delete": Entry(HERE, "delete", "Delete a namespace that is empty."),
    "inspect": Entry(HERE, "inspect", "Print a namespace as servers keep it."),
}
a_namespace = click.argument("name", metavar="NAMESPACE", shell_complete=complete_namespaces)


@click.group(cls=LazyGroup, entries=COMMANDS)
def namespace() -> None:
    """Make namespaces, and show them."""


@click.command("list", cls=Speaking)
def list_(talk: Talk) -> None:
    """List namespaces.

    wharf namespace list
    """
    from wharf.cli.tables import table

    records = talk.client.namespaces.list().value
    rows = [(one.name, one.quota or "-", one.description) for one in records]
    talk.show(records, lambda: table(("Name", "Quota", "Description"), rows))


@click.command(cls=Speaking)
@a_namespace
def status(talk: Talk, name: str) -> None:
    """Show a namespace, and what its quota leaves.

    wharf namespace status shop
    """
    show_namespace(talk, name)


def show_namespace(talk: Talk, name: str) -> None:
    from wharf.cli.failing import Failed
    from wharf.cli.quota import usage_told
    from wharf.cli.tables import pairs, section
    from wharf.client.errors import NotFound

    try:
        one = talk.client.namespaces.read(name).value
    except NotFound as error:
        raise Failed(f"there is no namespace {name}; `wharf namespace list` lists all") from error
    may_use = one.capabilities

    def text() -> str:
        parts = [
            pairs(
                [
                    ("Name", one.name),
                    ("Description", one.description),
                    ("Quota", one.quota),
                    ("Weight", one.weight),
                    ("Drivers", ", ".join((may_use.enabled_task_drivers if may_use else None) or ("all",))),
                    ("No drivers", ", ".join((may_use.disabled_task_drivers if may_use else None) or ())),
                    ("Meta", ", ".join(f"{key}={value}" for key, value in sorted((one.meta or {}).items()))),
                ]
            )
        ]
        if one.quota:
            parts.append(section(f"Quota {one.quota}", usage_told(talk, one.quota)))
        return "\n".join(parts)

    talk.show(one, text)


@click.command(cls=Quiet)
@click.argument("name_or_file", metavar="NAME|FILE")
@click.option("--description", help="What it is for.")
@click.option("--quota", help="The quota that its jobs share; '' for none.")
@click.option("--weight", type=click.IntRange(1, 1000), help="Its share of the fleet where several wait for room.")
def apply(talk: Talk, name_or_file: str, description: str | None, quota: str | None, weight: int | None) -> None:
    """Make or change a namespace.

    FILE is JSON or YAML with the fields that `inspect` prints. With a name, what no option says stays as it is.

    wharf namespace apply --description "the shop" shop
    """
    from wharf.cli.records import record_changed
    from wharf.model.namespace import Namespace

    read = talk.client.namespaces.read
    one = record_changed(name_or_file, Namespace, read, description=description, quota=quota, weight=weight)
    talk.client.namespaces.store(one)
    click.echo(f"namespace {one.name} is there")


@click.command(cls=Quiet)
@a_namespace
def delete(talk: Talk, name: str) -> None:
    """Delete a namespace that is empty.

    wharf namespace delete shop
    """
    talk.client.namespaces.delete(name)
    click.echo(f"namespace {name} is deleted")


@click.command(cls=Speaking)
@a_namespace
def inspect(talk: Talk, name: str) -> None:
    """Print a namespace as servers keep it.

    wharf namespace inspect shop
    """
    talk.as_json = not talk.template
    talk.show(talk.client.namespaces.read(name).value, str)
