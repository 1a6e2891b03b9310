"""Arguments and options that several commands share, and options with former names."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.times import NS_PER_SECOND
from wharf.cli.completion import complete_allocations, complete_jobs, complete_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable


INTERRUPTED_EXIT_CODE: Final = 130
"""The exit code after Ctrl-C, as in shells: 128 + SIGINT."""


class DurationInSeconds(click.ParamType[float]):
    """The type of an option that takes a duration such as `15m`; the command receives seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float:
        """Return the duration in seconds. Fails for a text that is not a duration, and for a negative one."""
        from wharf.contract.model.times import DurationError, parse_duration_ns

        if not isinstance(value, str):
            return float(value)
        try:
            seconds = parse_duration_ns(value) / NS_PER_SECOND
        except DurationError as error:
            self.fail(str(error), param, context)
        if seconds < 0:
            self.fail(f"expected 0 or more, got {value}", param, context)
        return seconds


class FollowOptions(NamedTuple):
    """How long a command follows the change that it made."""

    detach: bool
    follow: bool
    progress_timeout_s: float


detach_option = click.option("--detach", is_flag=True, help="Return as soon as the servers have accepted the request.")
follow_option = click.option(
    "--follow", is_flag=True, help="Follow the job to its end, even if the output is not a terminal."
)
progress_timeout_option = click.option(
    "--progress-timeout",
    "progress_timeout_s",
    type=DurationInSeconds(),
    default="15m",
    show_default=True,
    help="Stop following the job after this time without progress; 0: never.",
)


def follow_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add `--detach`, `--follow` and `--progress-timeout`. The command receives them together as `following`."""

    @detach_option
    @follow_option
    @progress_timeout_option
    @wraps(function)
    def call(*arguments: Any, detach: bool, follow: bool, progress_timeout_s: float, **values: Any) -> None:
        function(*arguments, following=FollowOptions(detach, follow, progress_timeout_s), **values)

    return call


raw_option = click.option(
    "--raw", is_flag=True, help="Do not remove control sequences of the task if the output is a terminal."
)
job_argument = click.argument("job_id", metavar="JOB", shell_complete=complete_jobs)
allocation_argument = click.argument("alloc_id", metavar="ALLOC", shell_complete=complete_allocations)
node_argument = click.argument("node_id", metavar="NODE", shell_complete=complete_nodes)


def confirm(question: str) -> None:
    """Ask for confirmation; abort the command if the user declines or there is no terminal."""
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        if not sys.stdin.isatty():
            print_notice("\nnot confirmed: without a terminal, confirm with --yes")
        raise


def parse_key_values(pairs: "Iterable[str]", option: str, *, are_secret: bool = False) -> dict[str, str] | None:
    """Return the `KEY=VALUE` texts as a map, or None if there are none. `option` is the option's name for messages.

    With `are_secret`, errors name the position of a text and do not repeat it. Raises CliError.
    """
    found: dict[str, str] = {}
    for position, text in enumerate(pairs, 1):
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise CliError(f"{option} {position if are_secret else text}: expected KEY=VALUE")
        if key in found:
            raise CliError(f"{option} {position if are_secret else text}: the key occurs twice: remove one")
        found[key] = value
    return found or None
