"""`wharf limits simulate`: what new rules would have done with yesterday's requests."""

from pathlib import Path

import click

from wharf.cli.limits.admin_client import json_option, print_json


@click.command
@click.option(
    "--rules", "file", type=click.Path(path_type=Path, dir_okay=False), help="The rules.  [default: the built-in ones]"
)
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Draw a picture into this file.")
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@json_option
def simulate(file: Path | None, svg: Path | None, logs: tuple[Path, ...], as_json: bool) -> None:
    """Show whom rules would have refused.

    LOGS are access logs in common or combined format, with a duration in seconds at the end or not, or JSON with one
    object a line, in the order of time.
    """
    import gc
    import sys

    from wharf.cli.common.errors import CliError
    from wharf.limits.rules import InvalidFile, read_rules
    from wharf.limits.rules.rules_file import read_profile
    from wharf.limits.simulation.chart import render_svg
    from wharf.limits.simulation.parallel import WorkerFailed, choose_worker_count, simulate_logs

    try:
        rules = read_rules(file.read_text("utf-8"), str(file)) if file is not None else read_profile()
        total = sum(log.stat().st_size for log in logs)
        if svg is not None:
            svg.touch()  # Before the work, and not after it.
    except InvalidFile as refused:
        raise CliError(str(refused)) from None
    except OSError as problem:
        raise CliError(f"{problem.filename}: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise CliError(f"{file}: it is no UTF-8: {problem}") from None

    def progress(lines: int, read: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{lines:,} lines, {read * 100 // max(1, total)} %", err=True, nl=False)

    gc.freeze()
    gc.disable()  # Nothing of a simulation is in circles, and the process ends with it.
    try:
        outcome = simulate_logs(logs, rules, choose_worker_count(logs, rules), progress)
    except (WorkerFailed, OSError) as problem:
        raise CliError(f"the simulation could not end: {problem}") from None
    finally:
        gc.enable()
    if sys.stderr.isatty():
        click.echo("\r" + " " * 40 + "\r", err=True, nl=False)
    if svg is not None:
        svg.write_text(render_svg(outcome), "utf-8")
    if as_json:
        print_json(outcome.to_dict())
        return
    _show(outcome.to_dict())


def _show(told: dict[str, object]) -> None:
    from wharf.cli.common.rendering import render_section, render_table
    from wharf.cli.common.times import format_utc_time

    rules, callers, not_judged = told["rules"], told["callers"], told["not_judged"]
    shadowed, begins, ends = told["shadowed"], told["begins_ms"], told["ends_ms"]
    assert isinstance(rules, dict)
    assert isinstance(shadowed, dict)
    assert isinstance(callers, list)
    assert isinstance(not_judged, list)
    assert isinstance(begins, int)
    assert isinstance(ends, int)

    def date(moment_ms: int) -> str:
        return format_utc_time(moment_ms * 1_000_000)

    click.echo(
        f"{told['refused']:,} of {told['lines']:,} requests would be refused, from {date(begins)} to {date(ends)}"
    )
    if rules:
        by_rule = sorted(rules.items(), key=lambda entry: -entry[1])
        click.echo(render_section("By rule", render_table(("RULE", "REFUSED"), by_rule)))
        rows = [
            (c["caller"], c["rule"], c["count"], date(c["first_ms"]), date(c["last_ms"]), c["busiest"])
            for c in callers[:20]
        ]
        click.echo(
            render_section("By caller", render_table(("CALLER", "RULE", "REFUSED", "FIRST", "LAST", "FIRST AT"), rows))
        )
    if shadowed:
        click.echo(render_section("In shadow", render_table(("RULE", "WOULD REFUSE"), list(shadowed.items()))))
    click.echo(render_section("Not judged", "\n".join(f"- {line}" for line in not_judged)))
