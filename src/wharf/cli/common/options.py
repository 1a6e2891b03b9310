"""."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.completion import complete_allocations, complete_jobs, complete_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable


INTERRUPTED_EXIT_CODE: Final = 130


detach_option = click.option("--detach", is_flag=True, help="Return as soon as the servers have it.")


follow_option = click.option(
    "--follow", is_flag=True, help="Follow it to its end, also where the output is no terminal."
)


job_argument = click.argument("job_id", metavar="JOB", shell_complete=complete_jobs)


def parse_key_values(pairs: "Iterable[str]", option: str) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for text in pairs:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise CliError(f"{option} {text}: expected KEY=VALUE")
        found[key] = value
    return found or None


allocation_argument = click.argument("alloc_id", metavar="ALLOC", shell_complete=complete_allocations)


node_argument = click.argument("node_id", metavar="NODE", shell_complete=complete_nodes)
