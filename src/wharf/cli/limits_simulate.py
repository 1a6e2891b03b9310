"""`wharf limits simulate`: what new rules would have done with yesterday's requests."""

from pathlib import Path

import click

from wharf.cli.limits_speaking import json_option, show_json


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

    from wharf.cli.failing import Failed
    from wharf.limits.rules import FileRefused, read_rules
    from wharf.limits.rules.reader import read_profile
    from wharf.limits.simulate.parts import PartFailed, parts_for
    from wharf.limits.simulate.parts import simulate as replay
    from wharf.limits.simulate.picture import picture

    try:
        rules = read_rules(file.read_text("utf-8"), str(file)) if file is not None else read_profile()
        total = sum(log.stat().st_size for log in logs)
        if svg is not None:
            svg.touch()  # Before the work, and not after it.
    except FileRefused as refused:
        raise Failed(str(refused)) from None
    except OSError as problem:
        raise Failed(f"{problem.filename}: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise Failed(f"{file}: it is no UTF-8: {problem}") from None

    def progress(lines: int, read: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{lines:,} lines, {read * 100 // max(1, total)} %", err=True, nl=False)

    gc.freeze()
    gc.disable()  # Nothing of a simulation is in circles, and the process ends with it.
    try:
        outcome = replay(logs, rules, parts_for(logs, rules), progress)
    except (PartFailed, OSError) as problem:
        raise Failed(f"the simulation could not end: {problem}") from None
    finally:
        gc.enable()
    if sys.stderr.isatty():
        click.echo("\r" + " " * 40 + "\r", err=True, nl=False)
    if svg is not None:
        svg.write_text(picture(outcome), "utf-8")
    if as_json:
        show_json(outcome.told())
        return
    _show(outcome.told())


def _show(told: dict[str, object]) -> None:
    from wharf.cli.moments import say_date
    from wharf.cli.tables import section, table

    rules, callers, not_judged = told["rules"], told["callers"], told["not_judged"]
    shadowed, begins, ends = told["shadowed"], told["begins_ms"], told["ends_ms"]
    assert isinstance(rules, dict)
    assert isinstance(shadowed, dict)
    assert isinstance(callers, list)
    assert isinstance(not_judged, list)
    assert isinstance(begins, int)
    assert isinstance(ends, int)

    def date(moment_ms: int) -> str:
        return say_date(moment_ms * 1_000_000)

    click.echo(
        f"{told['refused']:,} of {told['lines']:,} requests would be refused, from {date(begins)} to {date(ends)}"
    )
    if rules:
        by_rule = sorted(rules.items(), key=lambda entry: -entry[1])
        click.echo(section("By rule", table(("RULE", "REFUSED"), by_rule)))
        rows = [
            (c["caller"], c["rule"], c["count"], date(c["first_ms"]), date(c["last_ms"]), c["busiest"])
            for c in callers[:20]
        ]
        click.echo(section("By caller", table(("CALLER", "RULE", "REFUSED", "FIRST", "LAST", "FIRST AT"), rows)))
    if shadowed:
        click.echo(section("In shadow", table(("RULE", "WOULD REFUSE"), list(shadowed.items()))))
    click.echo(section("Not judged", "\n".join(f"- {line}" for line in not_judged)))
