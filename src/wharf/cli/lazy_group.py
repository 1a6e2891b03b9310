"""Groups of commands whose modules are loaded when a command runs, and not for a page of help."""

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import click

NOT_SUPPORTED_BY_NODES: Final = "nodes do not serve this yet"
"""Of the commands about what is inside a task: its logs, its files, a terminal."""


class CommandEntry(NamedTuple):  # Of the standard library: help must not wait for anything else.
    """A command: where it is, and the line that help shows of it."""

    module: str
    name: str
    help: str


class LazyGroup(click.Group):
    """Knows names and lines of help by a table; the same lines stand in the commands (tested).

    `also`: other names that people know, which no help lists. `missing`: names that people may try, with what to say of
    what is not there. `default`: the command that is meant where the first word is none, nor like one.
    """

    def __init__(
        self,
        *arguments: Any,  # As click takes them.
        entries: Mapping[str, CommandEntry],
        also: Mapping[str, CommandEntry] | None = None,
        missing: Mapping[str, str] | None = None,
        default: str = "",
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.entries: Final = dict(entries)
        self.also: Final = dict(also or {})
        self.missing: Final = dict(missing or {})
        self.default: Final = default

    def list_commands(self, context: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.entries)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        entry = self.entries.get(name) or self.also.get(name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module), entry.name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = arguments[0] if arguments else ""
        if name in self.missing:
            raise click.UsageError(f"{context.command_path} {name}: {self.missing[name]}", context)
        if name and name not in self.entries and name not in self.also and not name.startswith("-"):
            near = difflib.get_close_matches(name, list(self.entries), n=1)
            if self.default and not near:
                return super().resolve_command(context, [self.default, *arguments])
            hint = (
                f"did you mean `{context.command_path} {near[0]}`?"
                if near
                else f"`{context.command_path} --help` lists all"
            )
            raise click.UsageError(f"there is no command {name}; {hint}", context)
        return super().resolve_command(context, arguments)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.entries.items()])
