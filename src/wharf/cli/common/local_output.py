"""`--json` and `--format` of commands that call no server of the cluster. Server commands have `Session.print_result`."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
JSON_FORMAT: Final = "json"
"""The value of `--format` that is not a template, but the same as `--json`."""
_META_KEY: Final = "wharf.output-template"


def output_options(command: F) -> F:
    """Add `--json` and `--format`. The command's parameter `as_json` is true for both; `print_document` prints."""
    add_json = click.option("--json", "as_json", is_flag=True, callback=_choose_json, help="Print JSON.")
    add_format = click.option(
        "--format",
        default="",
        is_eager=True,
        expose_value=False,
        callback=_store_template,
        help="Print `json`, or by a template, such as `{{.Name}}`.",
    )
    return add_json(add_format(command))


def _store_template(context: click.Context, _parameter: click.Parameter, template: str) -> None:
    """Store the template before `--json` is read. Raises `UsageError` if it is neither `json` nor a template."""
    require_template(template, context)
    context.meta[_META_KEY] = template


def _choose_json(context: click.Context, _parameter: click.Parameter, is_json: bool) -> bool:
    """Return whether the output is for programs. Raises `UsageError` if both options are given."""
    template = context.meta.get(_META_KEY, "")
    if is_json and template and not is_json_format(template):
        raise click.UsageError("--json and --format exclude each other: use one of them", context)
    return is_json or bool(template)


def is_json_format(template: str) -> bool:
    return template.strip().lower() == JSON_FORMAT


def require_template(template: str, context: click.Context) -> None:
    """Raise `UsageError` unless a value of `--format` is empty, `json`, or contains a template."""
    if template and "{{" not in template and not is_json_format(template):
        raise click.UsageError(f"--format {template} is neither json nor a template such as {{{{.ID}}}}", context)


def print_document(value: object, *, is_line: bool = False) -> None:
    """Print a value as JSON, on one line if `is_line`, or by the template of the command's `--format`."""
    context = click.get_current_context(silent=True)
    template = context.meta.get(_META_KEY, "") if context is not None else ""
    import json

    from wharf.cli.common.output import render_json, render_template, to_plain

    document = to_plain(value)
    if template and not is_json_format(template):
        text = render_template(template, document)
        click.echo(text, nl=not text.endswith("\n"))
        return
    click.echo(json.dumps(document) if is_line else render_json(document))


def print_change(document: object, text: str, *, as_json: bool) -> None:
    """Print what a command changed: `text`, or for programs the document."""
    if as_json:
        print_document(document)
        return
    from wharf.cli.common.sentences import print_sentence

    print_sentence(text)
