"""What goes wrong in the packages beneath becomes what a command shows: one line for each thing that is wrong."""

import contextlib
from collections.abc import Iterator
from typing import Final

import click


class Failed(click.ClickException):
    """A command that ends with a sentence and an exit code of its own."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.code = exit_code  # `exit_code` is the class's, and not this error's.


_KINDS_OF_NUMBERS: Final = {
    "is not a valid integer range.": "is not a whole number.",
    "is not a valid integer.": "is not a whole number.",
    "is not a valid float range.": "is not a number.",
}


def told(error: click.ClickException) -> str:
    """What is wrong; of a command that lacks something, where its help is, too."""
    text = error.format_message()
    if isinstance(error, click.NoSuchOption) and error.ctx is not None and isinstance(error.ctx.command, click.Group):
        name = error.option_name
        return (
            f"there is no option {name} here: options stand behind the command, as "
            f"`{error.ctx.command_path} COMMAND {name} …`"
        )
    for kind, plain in _KINDS_OF_NUMBERS.items():
        if text.endswith(kind):
            return text.removesuffix(kind) + plain
    if isinstance(error, click.MissingParameter) and error.ctx is not None:
        return f"{text.rstrip('.')}; `{error.ctx.command_path} --help` tells more"
    return text


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Inside, refusals of configuration and agent end the command with their sentences."""
    from wharf.agent.refusal import Refused
    from wharf.config.problems import ConfigurationRefused

    try:
        yield
    except (ConfigurationRefused, Refused) as refused:
        raise click.ClickException(str(refused)) from refused
