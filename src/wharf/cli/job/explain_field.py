"""`wharf job explain-field`: the description of a field of the job file, from the schema that is shipped with Wharf."""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.rendering import get_terminal_width, render_heading, style_dim
from wharf.cli.common.sentences import print_notice

MAX_WIDTH: Final = 100
"""Longer lines are hard to read, also on a wide terminal."""
LABEL_WIDTH: Final = 10
MAX_OTHER_PLACES: Final = 6
"""Further places of a field that are listed."""
_FIRST_CLAUSE: Final = re.compile(r"; | \(")
"""Where the explanation of a default begins."""
_FACTS: Final = {
    "x-default": "Default", "x-limits": "Limits", "x-effect": "Effect", "x-deprecated": "Deprecated", "x-set-by": "Set by",
}  # fmt: skip


@click.command
@click.argument("path", default="")
@click.option("--recursive", is_flag=True, help="List all fields inside, without descriptions.")
def explain_field(path: str, recursive: bool) -> None:
    """Explain a field of the job file.

    PATH is the field with the names of HCL or of the API, such as group.count, TaskGroups.Count, resources, docker.image or
    variable.validation. The paths of messages, such as TaskGroups[0].Count, work too. Without PATH, the fields of the job are
    listed.

    wharf job explain-field task.resources.memory
    """
    from wharf.job_files.schema import find_fields

    search = find_fields(path)
    if not search.fields:
        hint = (
            f"did you mean `wharf job explain-field {search.suggestion}`?"
            if search.suggestion
            else "`wharf job explain-field` lists the fields of a job"
        )
        raise CliError(f'unknown field "{path[:200]}"; {hint}')
    if search.skipped_name:
        print_notice(f"{search.skipped_name} is not a field: taking it for the name of a job, group or task")
    field, *others = search.fields
    width = min(get_terminal_width(), MAX_WIDTH)
    lines = _render_tree(field) if recursive else _render_field(field, others, width)
    click.echo("\n".join(lines))


def _render_field(field: Any, others: list[Any], width: int) -> Iterator[str]:  # SchemaFields, imported when needed.
    """Yield the lines that describe one field, and the fields inside of it."""
    from wharf.job_files.schema import list_children

    entry = field.entry
    yield render_heading(".".join(field.path) or "Job")
    yield ""
    prose, _, _ = str(entry["description"]).partition("\n\nType: ")
    for paragraph in prose.split("\n\n"):
        yield from textwrap.wrap(_to_plain(paragraph), width, initial_indent="  ", subsequent_indent="  ")
        yield ""
    yield from _render_facts(field, width)
    other_paths = list(dict.fromkeys(".".join(each.path) for each in others))
    if other_paths:
        more = f" and {len(other_paths) - MAX_OTHER_PLACES} more" if len(other_paths) > MAX_OTHER_PLACES else ""
        yield from _render_fact("Also", ", ".join(other_paths[:MAX_OTHER_PLACES]) + more, width)
    children = list_children(field)
    if children:
        if "x-type" in entry:
            yield ""
        yield render_heading("Drivers" if entry.get("x-type") == "options of the driver" else "Fields")
        for child in children:
            yield from _render_child(child, width)


def _render_facts(field: Any, width: int) -> Iterator[str]:  # A SchemaField.
    """Yield one line for each fact about a field: type, values, default, limits and spellings."""
    entry = field.entry
    if "x-type" in entry:
        yield from _render_fact("Type", _describe_type(entry), width)
    for number, (value, meaning) in enumerate(entry.get("x-values", {}).items()):
        yield from _render_fact("" if number else "Values", f"{value}: {_to_plain(meaning)}", width, hanging_indent=2)
    for key, label in _FACTS.items():
        if key in entry:
            yield from _render_fact(label, _to_plain(entry[key]), width)
    yield from _render_spellings(field, width)


def _render_spellings(field: Any, width: int) -> Iterator[str]:  # A SchemaField.
    """Yield the lines with the field in YAML and in HCL, with the example if it has one."""
    entry = field.entry
    if not field.path or "x-set-by" in entry:
        return
    name, spelling, example = field.path[-1], entry.get("x-hcl"), entry.get("examples", [None])[0]
    is_options = "x-hcl-name" in entry
    if is_options:
        return
    yaml_text = f"{name}: {_format_yaml(example)}" if example is not None else f"{name}: ..."
    yield from _render_fact("YAML", yaml_text, width, hanging_indent=2)
    place = " > ".join(_remove_driver(field))
    if spelling is None:
        yield from _render_fact("HCL", "cannot be written in HCL", width)
    elif spelling["form"] == "label":
        yield from _render_fact("HCL", f"the label of the block, in {place}", width)
    elif spelling["form"] == "argument":
        value = str(example) if spelling.get("is_expression") else _format_hcl(example)
        value = value if example is not None else "..."
        yield from _render_fact("HCL", f"{field.hcl_path[-1]} = {value}", width, hanging_indent=2)
        yield from _render_fact("", f"in {place}", width)
    else:
        label = ' "..."' if spelling.get("has_label") else ""
        header = f"{field.hcl_path[-1]}{label} {{"
        if isinstance(example, dict) and spelling["form"] == "map" and len(example) > 1:
            # A block on one line has at most one argument.
            yield from _render_fact("HCL", header, width)
            for key, value in example.items():
                yield from _render_fact("", f"  {key} = {_format_hcl(value)}", width, hanging_indent=4)
            yield from _render_fact("", "}", width)
        else:
            has_names = isinstance(example, dict) and spelling["form"] == "map"
            body = _format_hcl(example).strip("{}") if has_names else " ... "
            yield from _render_fact("HCL", f"{header}{body}}}", width, hanging_indent=2)
        yield from _render_fact("", f"in {place}", width)


def _remove_driver(field: Any) -> Iterator[str]:  # A SchemaField.
    """Yield the HCL blocks around a field. The options of a driver are in the block `config`, without the driver's name."""
    for outer, name in zip(("", *field.hcl_path), field.hcl_path[:-1], strict=False):
        if outer != "config":
            yield name


def _render_fact(label: str, text: str, width: int, *, hanging_indent: int = 0) -> Iterator[str]:
    """Yield the lines of one fact, wrapped beside its label."""
    indent = " " * (2 + LABEL_WIDTH)
    lines = textwrap.wrap(text, max(width - len(indent), 20), subsequent_indent=" " * hanging_indent) or [""]
    yield f"  {style_dim(f'{label:<{LABEL_WIDTH}}')}{lines[0]}"
    yield from (f"{indent}{line}" for line in lines[1:])


def _render_child(child: Any, width: int) -> Iterator[str]:  # A SchemaField.
    """Yield the name of a field inside a block, with its type and default, and the first sentence of its description."""
    entry = child.entry
    if "x-set-by" in entry:
        return
    name, hcl_name = child.path[-1], child.hcl_path[-1]
    title = name if hcl_name == name or "x-hcl" not in entry else f"{name} ({hcl_name})"
    facts = [_describe_type(entry)] if "x-type" in entry else []
    default = _to_plain(entry.get("x-default", "none"))
    if default == "none; required":
        facts.append("required")
    elif not default.startswith("none") and not child.block_name:
        facts.append(f"default: {_FIRST_CLAUSE.split(default)[0]}")
    if "x-deprecated" in entry:
        facts.append("deprecated")
    if (effect := entry.get("x-effect")) is not None:
        facts.append("refused" if effect.startswith("refused") else "no effect")
    details = ""
    for fact in facts:
        longer = f"{details}; {fact}" if details else fact
        details = longer if len(title) + len(longer) + 4 <= width else details
    yield f"  {title}" + (f"  {style_dim(details)}" if details else "")
    summary = _to_plain(str(entry["description"]).split("\n\n")[0])
    yield from textwrap.wrap(summary, width, initial_indent="      ", subsequent_indent="      ")


def _render_tree(field: Any, depth: int = 0) -> Iterator[str]:  # A SchemaField.
    """Yield one line for each field inside a block, at all depths."""
    from wharf.job_files.schema import list_children

    if depth == 0:
        yield render_heading(".".join(field.path) or "Job")
    for child in list_children(field):
        if "x-set-by" in child.entry:
            continue
        name, hcl_name = child.path[-1], child.hcl_path[-1]
        title = name if hcl_name == name or "x-hcl" not in child.entry else f"{name} ({hcl_name})"
        type_text = _describe_type(child.entry) if "x-type" in child.entry else "block"
        yield f"{'  ' * (depth + 1)}{title}  {style_dim(type_text)}"
        yield from _render_tree(child, depth + 1)


def _describe_type(entry: Mapping[str, Any]) -> str:
    return f"{entry['x-type']} ({entry['x-unit']})" if "x-unit" in entry else str(entry["x-type"])


def _to_plain(text: str) -> str:
    """Return a description without the marks of code."""
    return text.replace("`", "")


def _format_yaml(value: Any) -> str:  # Any JSON value.
    """Return a value as YAML: JSON, with plain words without quotes."""
    if isinstance(value, str) and value and all(letter.isalnum() or letter in "-_./" for letter in value):
        return value if not value[0].isdecimal() or value[-1].isalpha() else json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


def _format_hcl(value: Any) -> str:  # Any JSON value.
    """Return a value as HCL."""
    if isinstance(value, dict):
        entries = ", ".join(f"{key} = {_format_hcl(item)}" for key, item in value.items())
        return f"{{ {entries} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_format_hcl, value))}]"
    return json.dumps(value, ensure_ascii=False)
