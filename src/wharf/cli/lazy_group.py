"""Command groups that import the module of a command only when the command runs, so that help loads quickly."""

import importlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import click

NOT_SUPPORTED_BY_NODES: Final = "nodes do not support this yet"
"""The error of commands that need a function which node agents do not have."""


class CommandEntry(NamedTuple):  # Not a msgspec struct: help must not wait for that import.
    """Where a command is defined, and its line in the help of the group."""

    module: str
    name: str
    help: str


class LazyGroup(click.Group):
    """A click group whose commands are listed in a table.

    `entries` are the commands that help lists; a test compares their help lines with the commands. `aliases` are
    further names that help does not list. `unavailable` maps names of commands that do not exist to an error text.
    `default_command` runs if the first argument is not a command and does not resemble one.
    """

    def __init__(
        self,
        *arguments: Any,  # click's own arguments.
        entries: Mapping[str, CommandEntry],
        aliases: Mapping[str, CommandEntry] | None = None,
        unavailable: Mapping[str, str] | None = None,
        default_command: str = "",
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.entries: Final = dict(entries)
        self.aliases: Final = dict(aliases or {})
        self.unavailable: Final = dict(unavailable or {})
        self.default_command: Final = default_command

    def list_commands(self, context: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands for help, in the order of the table."""
        return list(self.entries)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command by its name or alias; None if neither exists."""
        entry = self.entries.get(name) or self.aliases.get(name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module), entry.name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name. An unknown name is an error with a suggestion."""
        name = arguments[0] if arguments else ""
        if name in self.unavailable:
            raise click.UsageError(f"{context.command_path} {name}: {self.unavailable[name]}", context)
        if name and name not in self.entries and name not in self.aliases and not name.startswith("-"):
            from wharf.languages.suggestions import find_nearest_name

            nearest = find_nearest_name(name, self.entries, min_similarity=0.6)
            if self.default_command and not nearest:
                return super().resolve_command(context, [self.default_command, *arguments])
            hint = (
                f"did you mean `{context.command_path} {nearest}`?"
                if nearest
                else f"`{context.command_path} --help` lists the commands"
            )
            raise click.UsageError(f"unknown command {name}; {hint}", context)
        return super().resolve_command(context, arguments)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the section of commands from the table, without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.entries.items()])
