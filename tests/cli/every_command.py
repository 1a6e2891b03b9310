"""Lists all commands of `wharf`, with arguments for each, so that one test can call all of them."""

from collections.abc import Iterator

import click

from wharf.cli.root import root

Words = tuple[str, ...]
STARTS_PROCESSES: frozenset[Words] = frozenset({("dev",), ("gateway",), ("limits", "demo")})
"""Commands that run until they are stopped, whatever their arguments are."""
_OPTION_VALUES = {
    "--amount": "5", "--auth-method": "sso", "--bind-type": "role", "--config": "missing.toml", "--duration": "10m", "--from": "2026-01-01",
    "--name": "n1", "--since": "1h", "--to": "json",
}  # fmt: skip
_FURTHER_OPTIONS: dict[Words, Words] = {
    ("node", "drain"): ("--enable", "--detach"),
    ("node", "eligibility"): ("--enable",),
    ("job", "rerun"): ("--failed",),
    ("limits", "grant"): ("--duration", "10m"),
    ("operator", "debug"): ("--output", "missing/debug.zip"),
    ("operator", "snapshot", "restore"): ("--yes",),
    ("top",): ("--once",),
}


def list_commands() -> list[tuple[Words, click.Command]]:
    """Return all commands that end, with their names, in the order of help."""
    return [(words, command) for words, command in _walk(root, ()) if words not in STARTS_PROCESSES]


def _walk(command: click.Command, words: Words) -> Iterator[tuple[Words, click.Command]]:
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from _walk(found, (*words, name))


def takes_text(command: click.Command) -> bool:
    """Return whether a command has a required text argument, such as an id or a name."""
    return any(_is_text(param) and param.required for param in command.params if isinstance(param, click.Argument))


def takes_file(command: click.Command) -> bool:
    """Return whether a command has a required argument that is a file."""
    return any(_is_file(param) and param.required for param in command.params if isinstance(param, click.Argument))


def build_arguments(words: Words, command: click.Command, *, text: str, file: str = "missing.yaml") -> list[str]:
    """Return arguments with which a command passes the checks of its options. Texts are `text`, and files `file`."""
    required = [param for param in command.params if isinstance(param, click.Option) and param.required]
    options = [word for param in required for word in (param.opts[0], _OPTION_VALUES[param.opts[0]])]
    options += _FURTHER_OPTIONS.get(words, ())
    arguments: list[str] = []
    for param in command.params:
        if not isinstance(param, click.Argument):
            continue
        if isinstance(param.type, click.Choice):
            arguments.append(str(param.type.choices[0]))
        elif _is_file(param):
            arguments.append(file)
        elif isinstance(param.type, click.IntRange):
            arguments.append("1")
        elif param.name == "command":
            arguments.append("true")
        else:
            arguments.append(text)
    return [*options, "--", *arguments] if words != ("alloc", "exec") else [*options, *arguments]


def _is_text(param: click.Argument) -> bool:
    return isinstance(param.type, click.types.StringParamType) and param.name != "command"


def _is_file(param: click.Argument) -> bool:
    return isinstance(param.type, click.Path | click.File)
