"""The JSON Schema of job files in YAML and JSON, as it is shipped with Wharf, and the search for one of its fields.

`wharf.job_files.reference` generates the file from the model. It has the descriptions of all fields, so commands and servers read
them from it. It is the only file that this package reads.
"""

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from typing import Any, Final, NamedTuple

from wharf.languages.suggestions import find_nearest_name

JsonObject = dict[str, Any]  # Any JSON values.

SCHEMA_FILE_NAME: Final = "job.schema.json"
SCHEMA_URL_PATH: Final = "/v1/schema/job.json"
"""Where agents serve the schema."""
DRIVERS_KEY: Final = "x-drivers"
"""The key of the schema with the name of the definition of each driver's options."""
FIELDS_KEY: Final = "x-fields"
"""The key of a field with the schemas of the fields inside, if no definition has them."""
DECLARATION_FIELDS: Final = ("variables", "locals")
FILE_PLACE: Final = "the file"
"""The place of blocks that are not inside of the block `job`."""
_BRACKETS: Final = re.compile(r"\[[^\]]*\]?|\"[^\"]*\"?")
"""Positions, keys and labels in a path of a message, such as `TaskGroups[0].Meta[a.b]` or `job "web" > group "api"`."""
_SEPARATORS: Final = re.compile(r"[.>\s]+")
MAX_PATH_PARTS: Final = 32
"""Parts of a path that is searched. The deepest field has less; longer paths are not found."""


def format_schema_comment(agent_address: str = "http://127.0.0.1:4646") -> str:
    """Return the first line of a job file in YAML that lets editors check and complete the file.

    The language server of YAML, which many editors use, reads the schema from the agent at this address.
    """
    return f"# yaml-language-server: $schema={agent_address.rstrip('/')}{SCHEMA_URL_PATH}"


def read_schema_text() -> bytes:
    """Return the schema as JSON."""
    return resources.files("wharf.job_files").joinpath(SCHEMA_FILE_NAME).read_bytes()


@functools.cache
def load_schema() -> JsonObject:
    """Return the schema. Callers must not modify it."""
    schema: JsonObject = json.loads(read_schema_text())
    return schema


def list_descriptions() -> dict[str, dict[str, str]]:
    """Return the description of each field, by the name of its record class and its wire name."""
    return {
        name: {field: str(entry["description"]) for field, entry in definition["properties"].items()}
        for name, definition in load_schema()["$defs"].items()
    }


class SchemaField(NamedTuple):
    """One field at one place of a job file."""

    path: tuple[str, ...]
    """The names of the API from the job on, such as `("TaskGroups", "Count")`; empty for the job itself."""
    hcl_path: tuple[str, ...]
    """The names of the HCL blocks from `job` on, and of the argument."""
    entry: Mapping[str, Any]
    """The schema of the field, or the definition of the job."""

    @property
    def block_name(self) -> str:
        """The name of the definition with the fields of this block; empty if the field is not a block."""
        return str(self.entry.get("x-block", ""))


class FieldSearch(NamedTuple):
    """The result of a search for a path."""

    fields: tuple[SchemaField, ...]
    """The places that match, the nearest to the job first."""
    suggestion: str = ""
    """A path with a similar name, if no place matches; empty if none is similar."""
    skipped_name: str = ""
    """The first part of the path, if it was taken for the name of a job, group or task."""


def iterate_fields(block_name: str = "Job") -> Iterator[SchemaField]:
    """Yield all fields at all their places: those of outer blocks before those of inner ones."""
    definitions = load_schema()["$defs"]
    root: JsonObject = {**definitions[block_name], "x-block": block_name}
    waiting = [SchemaField((), (root["x-hcl-name"],), root)]
    while waiting:
        blocks, waiting = waiting, []
        for field in blocks:
            yield field
            waiting.extend(list_children(field))


def list_children(field: SchemaField) -> list[SchemaField]:
    """Return the fields of a block, in the order of the schema; the options of all drivers for the `Config` of a task."""
    schema = load_schema()
    definitions = schema["$defs"]
    fields = definitions[field.block_name]["properties"] if field.block_name else field.entry.get(FIELDS_KEY, {})
    if fields:
        return [
            SchemaField((*field.path, name), (*_get_hcl_block(field, name), get_hcl_name(name, entry)), entry)
            for name, entry in fields.items()
        ]
    if field.entry.get("x-type") == "options of the driver":
        return [
            SchemaField((*field.path, driver), (*field.hcl_path, driver), {**definitions[name], "x-block": name})
            for driver, name in schema[DRIVERS_KEY].items()
        ]
    return []


def _get_hcl_block(field: SchemaField, name: str) -> tuple[str, ...]:
    """Return the HCL blocks around a field inside of another one. Declarations are beside the job."""
    return (FILE_PLACE,) if not field.path and name in DECLARATION_FIELDS else field.hcl_path


def get_hcl_name(name: str, entry: Mapping[str, Any]) -> str:
    """Return the HCL name of a field: of the argument, block or label. A field that HCL lacks keeps the name of the API."""
    spelling = entry.get("x-hcl") or {}
    return str(spelling.get("name") or name)


def find_fields(path_text: str) -> FieldSearch:
    """Find the fields that a path names, such as `group.task.resources.memory`, `Resources.MemoryMB` or `docker.image`.

    Each part is a name of the API or of HCL, in upper or lower case. Outer parts can be left out. The first part may also be
    the name of a job, group or task of the user. Paths of messages are found too: with positions, keys of maps and labels.
    """
    parts = [part.lower() for part in _SEPARATORS.split(_BRACKETS.sub(" ", path_text)) if part]
    if parts[:1] == ["job"]:
        parts = parts[1:]
    if len(parts) > MAX_PATH_PARTS:
        return FieldSearch(())
    fields = _list_fields()
    if not parts:
        return FieldSearch((fields[0],))
    if matching := _find_matches(fields, parts):
        return FieldSearch(tuple(matching))
    if matching := _find_without_key(fields, parts):
        return FieldSearch(tuple(matching))
    suggestion = _suggest(fields, parts)
    if len(parts) > 1 and not _is_known_name(fields, parts[0]) and (matching := _find_matches(fields, parts[1:])):
        first_suggestion = find_nearest_name(parts[0], _list_names(fields), min_similarity=0.75)
        if not first_suggestion:
            return FieldSearch(tuple(matching), skipped_name=path_text.split(".")[0])
    return FieldSearch((), suggestion)


@functools.cache
def _list_fields() -> list[SchemaField]:
    return list(iterate_fields())


def _find_matches(fields: Iterable[SchemaField], parts: list[str]) -> list[SchemaField]:
    """Return the fields whose path contains these parts in this order and ends with the last of them.

    If the parts follow each other without gaps in some of the paths, only these match.
    """
    matching = [field for field in fields if _matches(field, parts)]
    exact = [field for field in matching if _matches(field, parts, is_exact=True)]
    return exact or matching


def _find_without_key(fields: Iterable[SchemaField], parts: list[str]) -> list[SchemaField]:
    """Return the fields of a path with a key of a map of the user, such as `env.PORT` or `variables.image.type`."""
    for position in range(1, len(parts)):
        outer = [field for field in _find_matches(fields, parts[:position]) if _is_map(field)]
        if outer and position + 1 == len(parts):
            return outer
        if outer and (matching := _find_matches(fields, parts[:position] + parts[position + 1 :])):
            return matching
    return []


def _is_map(field: SchemaField) -> bool:
    return str(field.entry.get("x-type", "")).startswith("map of")


def _matches(field: SchemaField, parts: list[str], *, is_exact: bool = False) -> bool:
    """Return whether the path of a field ends with these parts. Unless `is_exact`, blocks between them may be left out."""
    if not field.path or len(parts) > len(field.path):
        return False
    places = list(zip(field.path, field.hcl_path[1:], strict=True))
    if not _is_named(places[-1], parts[-1]):
        return False
    if is_exact:
        return all(map(_is_named, places[-len(parts) :], parts))
    remaining = iter(places[:-1])
    return all(any(_is_named(place, part) for place in remaining) for part in parts[:-1])


def _is_named(names: tuple[str, str], part: str) -> bool:
    """Return whether a part of a path is one of the two names of a field; a list may also be named in the singular."""
    lower_names = [name.lower() for name in names]
    return part in lower_names or f"{part}s" in lower_names or part.replace("_", "") == lower_names[0]


def _list_names(fields: Iterable[SchemaField]) -> set[str]:
    return {name for field in fields if field.path for name in (field.path[-1], field.hcl_path[-1])}


def _is_known_name(fields: Iterable[SchemaField], part: str) -> bool:
    return any(_is_named((field.path[-1], field.hcl_path[-1]), part) for field in fields if field.path)


def _suggest(fields: list[SchemaField], parts: list[str]) -> str:
    """Return a similar path: the first unknown part is replaced by the most similar name at its place."""
    outer: list[str] = []
    candidates = fields
    for position, part in enumerate(parts):
        if matching := _find_matches(fields, [*outer, part]):
            candidates = [child for field in matching for child in list_children(field)]
            outer.append(part)
            continue
        nearest = find_nearest_name(part, _list_names(candidates), min_similarity=0.6)
        nearest = nearest or find_nearest_name(part, _list_names(fields), min_similarity=0.6)
        if nearest == part:  # It is the name of a field elsewhere, without these outer parts.
            outer = []
        return ".".join([*outer, nearest, *parts[position + 1 :]]) if nearest else ""
    return ""
