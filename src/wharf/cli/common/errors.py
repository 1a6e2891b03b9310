"""Error texts: failures of click and of the agent's start, each as one line for the user."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

import click


class CliError(click.ClickException):
    """A failure of a command: the text for the user, and the exit code."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.code = exit_code  # Not `exit_code`: click defines that as a class attribute, the same for all errors.


_NUMBER_TYPE_TEXTS: Final = {
    "is not a valid integer range.": "is not a whole number.",
    "is not a valid integer.": "is not a whole number.",
    "is not a valid float range.": "is not a number.",
}
"""click's texts for values of a wrong type, and what to say instead."""

_REPLACED_OPTIONS: Final = {("agent", "dev"): "`wharf dev` runs a server and a node on this machine"}
"""Options that users know from other schedulers, by command, and what to do instead."""


def format_error(error: click.ClickException, arguments: Sequence[str]) -> str:
    """Return the text of an error, with a hint where to find help if options or arguments are wrong.

    `arguments` are those of the process.
    """
    if isinstance(error, click.NoSuchOption):
        error = _name_whole_option(error, arguments)
    # The choices of an option are on lines of their own.
    text = error.format_message().replace(":\n\t", ": ").replace(",\n\t", ", ")
    if isinstance(error, click.NoSuchOption) and error.ctx is not None and isinstance(error.ctx.command, click.Group):
        name = error.option_name
        return (
            f"unknown option {name}: put options after the command, such as `{error.ctx.command_path} COMMAND {name} …`"
        )
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        advice = _REPLACED_OPTIONS.get((error.ctx.command.name or "", error.option_name.lstrip("-")))
        if advice:
            return f"unknown option {error.option_name}; {advice}"
        return f"unknown option {error.option_name}; {_suggest_option(error.option_name, error.ctx)}"
    for click_text, plain_text in _NUMBER_TYPE_TEXTS.items():
        if text.endswith(click_text):
            return text.removesuffix(click_text) + plain_text
    if isinstance(error, click.MissingParameter | click.BadOptionUsage) and error.ctx is not None:
        return f"{text.rstrip('.')}; see `{error.ctx.command_path} --help`"
    return text


def _name_whole_option(error: click.NoSuchOption, arguments: Sequence[str]) -> click.NoSuchOption:
    """Return the error with the option as the user wrote it, such as `-detach`, of which click names one letter."""
    if len(error.option_name) != len("-x"):
        return error
    words = takewhile(lambda word: word != "--", arguments)
    letter = error.option_name[1]
    word = next((word for word in words if re.match(r"-[^-].", word) and letter in word), None)
    if word is None:
        return error
    return click.NoSuchOption(word.partition("=")[0], ctx=error.ctx)


def _suggest_option(name: str, context: click.Context) -> str:
    """Return the option of a command that `name` resembles most, or the command that lists all. Hidden ones are left out."""
    from wharf.languages.suggestions import find_nearest_name

    known = [
        spelling
        for parameter in context.command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for spelling in parameter.opts
    ]
    nearest = find_nearest_name(f"--{name.lstrip('-')}", known, min_similarity=0.6)
    return f"did you mean `{nearest}`?" if nearest else f"see `{context.command_path} --help`"


MAX_ECHOED_CHARS: Final = 200
"""Limit of an argument in an error text; keeps the error readable. Servers use the same limit."""


_JWT: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_SECRET_OPTION: Final = re.compile(r"--?(?:token|login-token)(?:=.*)?", re.DOTALL)
_TOKEN_COMMAND: Final = re.compile(r"(?:acl to|acl bootstrap|login)")
"""The beginnings of commands about tokens, also misspelled ones."""
HIDDEN: Final = "<hidden>"
"""Stands for an argument that may be a secret."""
MIN_JWT_CHARS: Final = 60
"""Shorter texts are no signed tokens, but names such as `10.0.0.1` or `web.example.org`."""
MIN_SECRET_CHARS: Final = 8
"""Shorter arguments stay, because they could be part of other words of the text. No secret is that short."""


def hide_secrets(text: str, arguments: Sequence[str]) -> str:
    """Return an error text without the arguments that may be secrets, because transcripts and logs store error texts.

    These are signed tokens, the values of options for tokens, and UUIDs in commands about tokens: users mistake the
    secret of a token for its accessor id.
    """
    is_about_tokens = bool(_TOKEN_COMMAND.match(" ".join(arguments[:2]).replace("-", " ")))
    secrets: set[str] = set()
    is_value_of_option = False
    for word in arguments:
        value = word.partition("=")[2]
        if is_value_of_option:
            secrets.add(word)
        for part in (word, value):
            if (_JWT.fullmatch(part) and len(part) >= MIN_JWT_CHARS) or (is_about_tokens and _UUID.fullmatch(part)):
                secrets.add(part)
        is_option = _SECRET_OPTION.fullmatch(word) is not None
        is_value_of_option = is_option and "=" not in word
        if is_option and value:
            secrets.add(value)
    for secret in sorted((each for each in secrets if len(each) >= MIN_SECRET_CHARS), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def make_printable(text: str, arguments: Sequence[str]) -> str:
    """Return an error text for a terminal: arguments are shortened and kept on one line, other lines stay.

    Control characters are escaped, also those of servers, because an error must not control the user's terminal.
    """
    values = {part for word in arguments for part in (word, word.partition("=")[2])}
    for value in sorted(values, key=len, reverse=True):
        if len(value) > MAX_ECHOED_CHARS:
            text = text.replace(value, f"{_escape(value[:MAX_ECHOED_CHARS])}… ({len(value):,} characters)")
        elif value and not value.isprintable():
            text = text.replace(value, _escape(value))
    return "\n".join(_escape(line) for line in text.split("\n"))


def _escape(text: str) -> str:
    """Return a text with an escape for each character that cannot be printed, such as `\\n`, but for tabs."""
    return "".join(
        character if character.isprintable() or character == "\t" else ascii(character)[1:-1] for character in text
    )


@contextlib.contextmanager
def report_startup_errors() -> Iterator[None]:
    """Turn errors of the configuration and of the agent into a ClickException with the same text."""
    from wharf.agent.errors import CommandError, StartupError
    from wharf.config.errors import ConfigurationError

    try:
        yield
    except (ConfigurationError, CommandError, StartupError) as error:
        raise click.ClickException(str(error)) from error
