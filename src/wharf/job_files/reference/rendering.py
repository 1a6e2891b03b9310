"""Writes parts of a job, with the field names of the API, as YAML and as HCL."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from wharf.job_files.schema import JsonObject

_PLAIN_YAML: Final = re.compile(r"[A-Za-z/][A-Za-z0-9_./ -]*|[0-9]+[a-z]+[0-9a-z]*")
"""Texts that need no quotes in YAML."""
_YAML_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off"})
MAX_FLOW_CHARS: Final = 60
"""A longer list or map is written in several lines."""


def render_yaml(value: Any, indent: str = "") -> Iterator[str]:  # Any JSON value.
    """Yield the lines of a value in YAML."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _render_yaml_entry(f"{indent}{key}:", item, indent)
    elif isinstance(value, list | tuple):
        for item in value:
            first, *rest = render_yaml(item, indent + "  ")
            yield f"{indent}- {first.strip()}"
            yield from rest
    else:
        yield indent + _format_yaml_scalar(value)


def _render_yaml_entry(key: str, item: Any, indent: str) -> Iterator[str]:
    """Yield the lines of one entry of a map."""
    if isinstance(item, str) and item.endswith("\n"):
        yield f"{key} |"
        yield from (f"{indent}  {line}" for line in item.splitlines())
    elif isinstance(item, Mapping | list | tuple) and not item:
        yield f"{key} {json.dumps(item)}"
    elif isinstance(item, list | tuple) and not any(isinstance(each, Mapping) for each in item):
        yield f"{key} [{', '.join(map(_format_yaml_scalar, item))}]"
    elif isinstance(item, Mapping | list | tuple):
        yield key
        yield from render_yaml(item, indent + "  ")
    else:
        yield f"{key} {_format_yaml_scalar(item)}"


def _format_yaml_scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN_YAML.fullmatch(value) and value.lower() not in _YAML_WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


def render_hcl(schema: JsonObject, block_name: str, value: Mapping[str, Any], *, name: str = "") -> list[str]:
    """Return the lines of a block in HCL. `block_name` is the definition of its fields in the schema.

    `name` replaces the name of the block.
    """
    definition = schema["$defs"][block_name]
    return list(_render_block(schema, name or definition["x-hcl-name"], definition["properties"], value))


def _render_block(
    schema: JsonObject, name: str, properties: Mapping[str, Any], value: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the lines of a block with its label, arguments and inner blocks."""
    labels, arguments, blocks = [], [], []
    is_job = name == "job"
    for key, item in value.items():
        spelling = properties[key].get("x-hcl", {"name": key, "form": "argument"})
        if spelling["form"] == "label" or (is_job and key == "ID"):
            labels.append(json.dumps(item))
        elif spelling["form"] == "argument":
            arguments.append((spelling["name"], format_hcl_value(item)))
        elif spelling["form"] == "map":
            blocks.append(list(_render_map(spelling["name"], item)))
        else:
            inner = schema["$defs"][properties[key]["x-block"]]["properties"]
            if properties[key]["x-type"] == "map of blocks":
                item = [{"Name": label, **each} for label, each in item.items()]
            values = item if isinstance(item, list | tuple) else [item]
            blocks += [list(_render_block(schema, spelling["name"], inner, each)) for each in values]
    yield " ".join([name, *labels, "{"])
    yield from _align(arguments)
    for number, block in enumerate(blocks):
        if arguments or number:
            yield ""
        yield from (f"  {line}" if line else "" for line in block)
    yield "}"


def _render_map(name: str, value: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a block with any names."""
    yield f"{name} {{"
    yield from _align([(key, format_hcl_value(item)) for key, item in value.items()])
    yield "}"


def _align(arguments: list[tuple[str, str]]) -> Iterator[str]:
    """Yield arguments with their equal signs below each other, as the formatter of HCL does."""
    width = max((len(name) for name, _ in arguments), default=0)
    for name, text in arguments:
        yield from f"  {name:<{width}} = {text}".split("\n")


def format_hcl_value(value: Any) -> str:
    """Return a value in HCL. References such as `${attr.kernel.name}` need no escape: they are resolved on the node."""
    if isinstance(value, str) and value.endswith("\n"):
        lines = "".join(f"    {line}\n" for line in value.splitlines())
        return f"<<-EOT\n{lines}  EOT"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_hcl_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
