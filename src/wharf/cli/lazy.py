"""Groups of commands whose modules are loaded when a command runs, and not for a page of help."""

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import click


class Entry(NamedTuple):  # Of the standard library: help must not wait for anything else.
    """A command: where it is, and the line that help shows of it."""

    module: str
    name: str
    help: str


class LazyGroup(click.Group):
    """Knows names and lines of help by a table; the same lines stand in the commands (tested)."""

    def __init__(self, *arguments: Any, entries: Mapping[str, Entry], **options: Any) -> None:  # As click takes them.
        super().__init__(*arguments, **options)
        self.entries: Final = dict(entries)

    def list_commands(self, context: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.entries)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        entry = self.entries.get(name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module), entry.name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if arguments and arguments[0] not in self.entries and not arguments[0].startswith("-"):
            near = difflib.get_close_matches(arguments[0], list(self.entries), n=1)
            hint = (
                f"did you mean `{context.command_path} {near[0]}`?"
                if near
                else f"`{context.command_path} --help` lists all"
            )
            raise click.UsageError(f"there is no command {arguments[0]}; {hint}", context)
        return super().resolve_command(context, arguments)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.entries.items()])
