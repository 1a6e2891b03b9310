"""`wharf limits simulate`: shows which requests of access logs a set of rules would have refused."""

from pathlib import Path
from typing import Final

import click

from wharf.cli.common.local_output import output_options, print_document
from wharf.cli.common.terminal import begin_line_again

MAX_RULES_BYTES: Final = 64 << 20
"""Limit of a rules file. Protects memory; rules files are far smaller."""
LOG_FORMAT_TEXT: Final = (
    'expected the common or combined format, such as `192.0.2.7 - ada [21/Nov/2026:12:00:00 +0000] "GET /a HTTP/1.1" '
    "200 12`, or JSON with one object a line"
)


@click.command
@click.option(
    "--rules", "file", type=click.Path(path_type=Path, dir_okay=False), help="The rules.  [default: the built-in ones]"
)
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Also write a chart to this file.")
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@output_options
def simulate(file: Path | None, svg: Path | None, logs: tuple[Path, ...], as_json: bool) -> None:
    """Show which requests of access logs the rules would have refused.

    LOGS are access logs in common or combined format, or JSON with one object a line. Times can follow at the end of a
    line, such as `rt=$request_time uht=$upstream_header_time` of nginx. Lines must be in the order of time. Logs can be
    compressed with gzip, bzip2 or xz.
    """
    import gc
    import sys

    from wharf.cli.common.documents import read_utf8_text
    from wharf.cli.common.errors import CliError
    from wharf.limits.rules import InvalidFile, read_rules
    from wharf.limits.rules.rules_file import read_profile
    from wharf.limits.simulation.chart import render_svg
    from wharf.limits.simulation.parallel import (
        SimulationFailed,
        UnreadableLog,
        choose_worker_count,
        simulate_logs,
    )

    try:
        rules = (
            read_rules(read_utf8_text(str(file), str(file), max_bytes=MAX_RULES_BYTES), str(file))
            if file is not None
            else read_profile()
        )
        total = sum(log.stat().st_size for log in logs)
        if svg is not None:
            svg.touch()  # Fail now rather than after a long simulation if the file cannot be written.
    except InvalidFile as error:
        raise CliError(str(error)) from None
    except OSError as problem:
        raise CliError(f"{problem.filename}: {problem.strerror}") from None

    def print_progress(lines: int, read_bytes: int) -> None:
        if sys.stderr.isatty():
            click.echo(
                # Of compressed logs, more bytes are read than the files have.
                f"{begin_line_again()}{lines:,} lines, {min(100, read_bytes * 100 // max(1, total))} %",
                err=True,
                nl=False,
            )

    gc.freeze()
    gc.disable()  # Simulations create no reference cycles, and the process ends afterwards.
    try:
        outcome = simulate_logs(logs, rules, choose_worker_count(logs, rules), print_progress)
    except UnreadableLog as problem:
        raise CliError(str(problem)) from None
    except (SimulationFailed, OSError) as problem:
        raise CliError(f"the simulation failed: {problem}") from None
    finally:
        gc.enable()
    if sys.stderr.isatty():
        click.echo(begin_line_again() + " " * 40 + begin_line_again(), err=True, nl=False)
    if not outcome.lines:
        files = ", ".join(map(str, logs))
        raise CliError(f"{files}: no line is a logged request: {LOG_FORMAT_TEXT}")
    if svg is not None:
        svg.write_text(render_svg(outcome), "utf-8")
    if as_json:
        print_document(outcome.to_dict())
        return
    _print_outcome(outcome.to_dict())


def _print_outcome(outcome: dict[str, object]) -> None:
    """Print a summary of the simulation, then tables by rule and by caller."""
    from wharf.cli.common.rendering import render_section, render_table
    from wharf.cli.common.times import format_utc_time

    rules, callers, not_judged = outcome["rules"], outcome["callers"], outcome["not_judged"]
    assumptions = outcome["assumptions"]
    shadowed, begins, ends = outcome["shadowed"], outcome["begins_ms"], outcome["ends_ms"]
    assert isinstance(rules, dict)
    assert isinstance(shadowed, dict)
    assert isinstance(callers, list)
    assert isinstance(not_judged, list)
    assert isinstance(assumptions, list)
    assert isinstance(begins, int)
    assert isinstance(ends, int)

    def format_ms(time_ms: int) -> str:
        return format_utc_time(time_ms * 1_000_000)

    click.echo(
        f"{outcome['refused']:,} of {outcome['lines']:,} requests would be refused, "
        f"from {format_ms(begins)} to {format_ms(ends)}"
    )
    if rules:
        by_rule = sorted(rules.items(), key=lambda entry: -entry[1])
        click.echo(render_section("By rule", render_table(("Rule", "Refused"), by_rule)))
        rows = [
            (
                caller["caller"], caller["rule"], caller["count"], format_ms(caller["first_ms"]),
                format_ms(caller["last_ms"]), caller["busiest"],
            )
            for caller in callers[:20]
        ]  # fmt: skip
        titles = ("Caller", "Rule", "Refused", "First", "Last", "First endpoint")
        click.echo(render_section("By caller", render_table(titles, rows)))
    if shadowed:
        click.echo(render_section("In shadow mode", render_table(("Rule", "Would refuse"), list(shadowed.items()))))
    if assumptions:
        click.echo(render_section("Assumed", "\n".join(f"- {line}" for line in assumptions)))
    click.echo(render_section("Not simulated", "\n".join(f"- {line}" for line in not_judged)))
