"""Command groups that import the module of a command only when the command runs, so that help loads quickly."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

NOT_SUPPORTED_BY_NODES: Final = "nodes do not support this yet"
"""The error of commands that need a function which node agents do not have."""
NOMAD_PROGRAM: Final = "nomad"
"""The name of the program if it was called by the link that `wharf compat install-nomad` makes."""

SLURM_PROGRAMS: Final = ("sbatch", "squeue", "scancel", "sacct", "seff")
"""The names of the links that `wharf compat install-slurm` makes; each is also a command of `wharf`."""


class CommandEntry(NamedTuple):  # Not a msgspec struct: help must not wait for that import.
    """Where a command is defined, and its line in the help of the group."""

    module: str
    name: str
    help: str


HELP_COMMAND: Final = "help"
"""`wharf help job run` shows what `wharf job run --help` shows."""
_NOUN_AND_LIST_BY_ARGUMENT: Final = {
    "job_id": ("job", "wharf job status"),
    "job_ids": ("job", "wharf job status"),
    "node_id": ("node", "wharf node status"),
    "alloc_id": ("allocation", "wharf job status JOB"),
    "eval_id": ("evaluation", "wharf eval list"),
    "deployment_id": ("deployment", "wharf deployment list"),
    "volume_id": ("volume", "wharf volume status"),
    "id": ("id", "wharf status"),
}
"""Arguments that name a record, with the noun for error texts, and the command that lists such records."""


class CheckedText(click.types.StringParamType):
    """The type of all text arguments and options: text that can be sent, and not empty if it names something.

    `LazyGroup` gives this type to the parameters of each command.
    """

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        """Return the text. Fails if it is not UTF-8, or if it is empty and the argument names something."""
        text = super().convert(value, param, context)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text} is not UTF-8 text: enter it in UTF-8", param, context)
        if not text and isinstance(param, click.Argument) and _must_name_something(param):
            raise click.UsageError(_format_missing_name(param, context), context)
        return text


CHECKED_TEXT: Final = CheckedText()


def _must_name_something(argument: click.Argument) -> bool:
    return argument.required or argument.name in _NOUN_AND_LIST_BY_ARGUMENT


def _format_missing_name(argument: click.Argument, context: click.Context | None) -> str:
    """Return the error for an empty argument, with the command that lists what it can name, or the help."""
    name = argument.name or ""
    if name in _NOUN_AND_LIST_BY_ARGUMENT:
        noun, list_command = _NOUN_AND_LIST_BY_ARGUMENT[name]
        return f"missing {noun}: `{list_command}` lists all"
    noun = name.replace("_", " ")
    group = context.parent if context is not None else None
    if group is not None and isinstance(group.command, LazyGroup) and "list" in group.command.entries:
        owner = group.command_path.partition(" ")[2]
        return f"missing {noun} of the {owner}: `{group.command_path} list` lists all"
    return f"missing {noun}; see `{context.command_path if context is not None else 'wharf'} --help`"


class RenamedOption(click.Option):
    """An option with further names, such as former ones, which are accepted but not shown in help or completion."""

    def __init__(
        self,
        param_decls: Sequence[str] | None = None,
        *,
        former_names: Sequence[str],
        **attributes: Any,  # click's own arguments.
    ) -> None:
        super().__init__(param_decls, **attributes)
        self.former_names = tuple(former_names)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:  # click does not export the parser's type.
        """Add the option to click's parser, with its former names.

        Help shows `opts`, so that list is restored afterwards.
        """
        current_names = self.opts
        self.opts = [*current_names, *self.former_names]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = current_names


def _show_help(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(context.get_help(), color=context.color)
        context.exit()


def add_help_option(command: click.Command) -> None:
    """Let the command show its help with `-h`, `--help`, and `-help`, as users of Nomad write it."""
    if command.add_help_option:
        command.add_help_option = False  # Instead of click's own option, which would show all its names.
        command.params.append(
            RenamedOption(
                ["-h", "--help"],
                former_names=["-help"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_help,
                help="Show this message and exit.",
            )
        )


def add_second_dash(arguments: Sequence[str], params: Sequence[click.Parameter]) -> list[str]:
    """Return the arguments with `--name` for `-name` if the command has a long option of that name.

    Arguments after `--` stay.
    """
    known = {"help"}
    for param in params:
        names = (*param.opts, *param.secondary_opts, *getattr(param, "former_names", ()))
        known |= {name[2:] for name in names if name.startswith("--")}
    words: list[str] = []
    for position, word in enumerate(arguments):
        if word == "--":
            return words + list(arguments[position:])
        is_long_option = len(word) > 2 and word[0] == "-" and word[1] != "-" and word[1:].partition("=")[0] in known
        words.append(f"-{word}" if is_long_option else word)
    return words


def _takes_only_own_options(command: click.Command) -> bool:
    """Return whether no argument of the command is an option of another program. Server commands parse for themselves."""
    if type(command) is not click.Command:
        return False
    return command.allow_interspersed_args and not command.context_settings.get("ignore_unknown_options")


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
        for parameter in command.params:
            if parameter.type is click.STRING:
                parameter.type = CHECKED_TEXT
        add_help_option(command)
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name. An unknown name is an error with a suggestion."""
        name = arguments[0] if arguments else ""
        if name == HELP_COMMAND and name not in self.entries:
            arguments = [*arguments[1:], "--help"]
            name = arguments[0]
            if name == "--help":
                click.echo(context.get_help(), color=context.color)
                context.exit()
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
        found, command, rest = super().resolve_command(context, arguments)
        if command is not None and _takes_only_own_options(command):
            rest = add_second_dash(rest, command.params)
        return found, command, rest

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the section of commands from the table, without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.entries.items()])
