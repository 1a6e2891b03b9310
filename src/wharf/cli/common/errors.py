"""What goes wrong in the packages beneath becomes what a command shows: one line for each thing that is wrong.

What servers say is wrong with what they were sent, taken apart: one complaint for each thing, without the frame round it.

A complaint is shown as servers say it; only lists, lists in lists and counts are undone.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import click


class CliError(click.ClickException):
    """A command that ends with a sentence and an exit code of its own."""

    def __init__(self, message: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.code = exit_code  # `exit_code` is the class's, and not this error's.


_KINDS_OF_NUMBERS: Final = {
    "is not a valid integer range.": "is not a whole number.",
    "is not a valid integer.": "is not a whole number.",
    "is not a valid float range.": "is not a number.",
}


def format_error(error: click.ClickException) -> str:
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
def report_startup_errors() -> Iterator[None]:
    """Inside, refusals of configuration and agent end the command with their sentences."""
    from wharf.agent.errors import CommandError
    from wharf.config.errors import ConfigurationError

    try:
        yield
    except (ConfigurationError, CommandError) as refused:
        raise click.ClickException(str(refused)) from refused


_WITH_PLACE_FIRST: Final = re.compile(r"Job((?:\.\w+|\[\d+\])*): (.*)")
_ITEM: Final = re.compile(r"\n\s*\* ")
_COUNT: Final = re.compile(r"\b\d+ errors? occurred:$")
_WITH_PLACE_LAST: Final = re.compile(r"(.*) \(([A-Z]\w*(?:\[\d+\]|\.\w+)*)\)(: .*)?")


class ValidationIssue(NamedTuple):
    """`place`: where, as `TaskGroups[0].Count`; `Job` for a whole job, nothing where nobody told."""

    field_path: str
    text: str


def parse_validation_issues(text: str) -> list[ValidationIssue]:
    """They are said as `Job.Place: what; Job.Place: what`, or as a list of `what (Place)` in which there are lists."""
    found: list[ValidationIssue] = []
    for piece in _ITEM.split(text.strip()):
        one = " ".join(piece.split())
        if _COUNT.search(one):
            continue  # Only how many follow.
        if listed := _WITH_PLACE_LAST.fullmatch(one):
            found.append(ValidationIssue(listed[2], listed[1] + (listed[3] or "")))
            continue
        for part in re.split(r"; (?=Job\.)", one):
            named = _WITH_PLACE_FIRST.fullmatch(part)
            found.append(
                ValidationIssue(named[1].lstrip(".") or "Job", named[2]) if named else ValidationIssue("", part)
            )
    return found


def format_validation_issues(text: str) -> str:
    """What is told in lists, one line for each thing; anything else as one line."""
    if _ITEM.search(text) is None:
        return " ".join(text.split())
    return "\n".join(
        f"{one.field_path}: {one.text}" if one.field_path else one.text for one in parse_validation_issues(text)
    )
