"""The places of JSON fields in the file. They are searched when the first one is needed, because most jobs have no errors."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from wharf.job_files.hcl.block_types import BlockType, BodyKind, build_empty_object
from wharf.job_files.hcl.blocks import JOB
from wharf.languages.hcl.diagnostics import SourceRange
from wharf.languages.hcl.documents import EvaluatedAttribute, EvaluatedBlock, EvaluatedBody
from wharf.languages.hcl.values import MAPPINGS, SEQUENCES, HclObject, HclTuple, Value, has_sensitive_parts

JsonObject = dict[str, Any]
FilePath = tuple[str | int, ...]
"""The path of a value: keys and positions."""
_PATH_STEP: Final = re.compile(r"\.?([A-Za-z_]\w*)|\[[^\]]*\]")
_PATH_PART: Final = re.compile(r"\.?([A-Za-z_]\w*)|\[([^\]]*)\]")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(slots=True)
class ObjectOrigin:
    """Where a JSON object comes from: a block, or an argument that is a map."""

    object: JsonObject
    """The object itself. Origins are found by its identity, so it must not be deleted before."""
    block: BlockType
    source: EvaluatedBlock | EvaluatedAttribute


class PlaceIndex(Mapping[str, SourceRange]):
    """Maps paths of JSON fields, such as `TaskGroups[0].Count`, to their places in the file. The path of the job is empty."""

    def __init__(self, document: JsonObject, origins: Mapping[int, ObjectOrigin]) -> None:
        self._document = document
        self._origins = origins
        self._places: dict[str, SourceRange] | None = None

    def __getitem__(self, path: str) -> SourceRange:
        return self._get_places()[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._get_places())

    def __len__(self) -> int:
        return len(self._get_places())

    def copy_written(self) -> JsonObject:
        """Return the document without the fields that the file does not set."""
        return self._copy_object(self._document)

    def _copy_object(self, item: JsonObject) -> JsonObject:
        origin = self._origins.get(id(item))
        empty: Mapping[str, Any] = {}
        written: set[str] = set()
        if origin is not None and origin.block.body is BodyKind.FIELDS and isinstance(origin.source, EvaluatedBlock):
            empty = build_empty_object(origin.block)
            arguments = origin.source.body.attributes
            written = {argument.field for argument in origin.block.arguments if argument.name in arguments}
            written.add("Operand")  # A comparison without it is one of the API, where no operand is the default.
        return {
            name: self._copy_value(value)
            for name, value in item.items()
            if name in written or name not in empty or value != empty[name]
        }

    def _copy_value(self, value: Any) -> Any:
        """Return a copy of a value. Templates become plain texts."""
        if isinstance(value, dict):
            return self._copy_object(value)
        if isinstance(value, list):
            return [self._copy_value(item) for item in value]
        return str(value) if isinstance(value, str) else value

    def _get_places(self) -> dict[str, SourceRange]:
        if self._places is None:
            self._places = {}
            self._add_object(self._document, "", self._places)
        return self._places

    def _add_object(self, item: JsonObject, path: str, places: dict[str, SourceRange]) -> None:
        """Add an object, its fields, and the objects inside it."""
        origin = self._origins.get(id(item))
        if origin is not None:
            _add_fields(origin, path, places)
            if origin.block.body is not BodyKind.FIELDS:
                return
        for name, value in item.items():
            if isinstance(value, dict):
                self._add_object(value, join_path(path, name), places)
            elif isinstance(value, list):
                list_path = join_path(path, name)
                for position, element in enumerate(value):
                    if isinstance(element, dict):
                        self._add_object(element, f"{list_path}[{position}]", places)
                if list_path not in places and f"{list_path}[0]" in places:
                    places[list_path] = places[f"{list_path}[0]"]  # Errors of the whole list are at its first block.


def _add_fields(origin: ObjectOrigin, path: str, places: dict[str, SourceRange]) -> None:
    """Add an object and the fields that its block sets."""
    source, block = origin.source, origin.block
    if isinstance(source, EvaluatedAttribute):
        _add_value(source, path, places)
        return
    places[path] = source.place
    for field in block.label_fields if source.labels else ():
        places[join_path(path, field)] = source.label_places[0] if source.label_places else source.place
    if block.body is not BodyKind.FIELDS:
        _add_free_form(source.body, path, places)
        return
    for argument in block.arguments:
        found = source.body.attributes.get(argument.name)
        if found is None or found.value is None:
            continue
        _add_value(found, join_path(path, argument.field), places)
        if argument.operand:
            places[join_path(path, "Operand")] = found.name_place


def _add_free_form(body: EvaluatedBody, path: str, places: dict[str, SourceRange]) -> None:
    """Add the arguments and blocks of a body with any content. A block is an item of a list, below its labels."""
    for attribute in body.attributes.values():
        _add_value(attribute, join_path(path, attribute.name), places)
    counts: Counter[str] = Counter()
    for block in body.blocks:
        item_path = path
        for name in (block.type, *block.labels):
            item_path = join_path(item_path, name)
            position = counts[item_path] if name == block.type else 0
            counts[item_path] += 1
            places.setdefault(item_path, block.place)  # Errors of the whole list are at its first block.
            item_path = f"{item_path}[{position}]"
            places[item_path] = block.place
        _add_free_form(block.body, item_path, places)


def _add_value(attribute: EvaluatedAttribute, path: str, places: dict[str, SourceRange]) -> None:
    """Add the value of an argument, and the items of a list or map."""
    value = attribute.value
    places[path] = attribute.place
    if isinstance(value, SEQUENCES):
        for position in range(len(value.items)):
            places[f"{path}[{position}]"] = attribute.get_item_place(position)
    elif isinstance(value, MAPPINGS):
        for key in value.entries:
            places[join_path(path, key)] = attribute.get_item_place(key)


_BLOCKS_WITH_COPIES: Final = frozenset(("job", "group", "task"))
"""Blocks that may contain objects from blocks around them, such as the Vault block of a group in its tasks."""


def list_sensitive_paths(document: JsonObject, origins: Mapping[int, ObjectOrigin]) -> list[FilePath]:
    """Return the paths of the fields of a job whose values come from sensitive variables (record 0249)."""
    found: list[FilePath] = []
    _collect_sensitive(document, (), origins, found)
    return found


def _collect_sensitive(
    item: JsonObject, path: FilePath, origins: Mapping[int, ObjectOrigin], found: list[FilePath]
) -> None:
    """Add the sensitive fields of an object, and of the objects inside it."""
    origin = origins.get(id(item))
    if origin is not None:
        source, block = origin.source, origin.block
        if isinstance(source, EvaluatedAttribute):
            found += _list_sensitive_values(source, path)
            return
        if source.has_sensitive_labels:
            found += [(*path, field) for field in block.label_fields]
        if not source.body.has_sensitive_values:
            if block.name not in _BLOCKS_WITH_COPIES:
                return
        elif block.body is not BodyKind.FIELDS:
            _collect_free_form(source.body, path, found)
            return
        else:
            for name, attribute in source.body.attributes.items():
                if attribute.is_sensitive or has_sensitive_parts(attribute.value):
                    field = next((argument.field for argument in block.arguments if argument.name == name), "")
                    found += _list_sensitive_values(attribute, (*path, field)) if field else []
    for name, value in item.items():
        if isinstance(value, dict):
            _collect_sensitive(value, (*path, name), origins, found)
        elif isinstance(value, list):
            for position, element in enumerate(value):
                if isinstance(element, dict):
                    _collect_sensitive(element, (*path, name, position), origins, found)


def _collect_free_form(body: EvaluatedBody, path: FilePath, found: list[FilePath]) -> None:
    """Add the sensitive arguments of a body with any content. A block is an item of a list, below its labels."""
    for attribute in body.attributes.values():
        is_item = attribute.is_object_literal and not attribute.is_sensitive
        found += _list_sensitive_values(attribute, (*path, attribute.name, 0) if is_item else (*path, attribute.name))
    counts: Counter[str] = Counter()
    for block in body.blocks:
        item_path: FilePath = (*path, block.type, counts[block.type])
        counts[block.type] += 1
        for label in block.labels:
            item_path = (*item_path, label, 0)
        _collect_free_form(block.body, item_path, found)


def _list_sensitive_values(attribute: EvaluatedAttribute, path: FilePath) -> list[FilePath]:
    """Return the path of a sensitive argument, or those of its sensitive parts."""
    if attribute.is_sensitive:
        return [path]
    return [(*path, *inner) for inner in list_marked_paths(attribute.value)]


def list_marked_paths(value: Value) -> Iterator[FilePath]:
    """Yield the paths of the sensitive parts of a value."""
    if not isinstance(value, HclObject | HclTuple) or value.sensitive_keys is None:
        return
    for key, item in value.entries.items() if isinstance(value, HclObject) else enumerate(value.items):
        if key in value.sensitive_keys:
            yield (key,)
        else:
            for inner in list_marked_paths(item):
                yield (key, *inner)


def join_path(path: str, name: str) -> str:
    """Return the path of a field. Unusual names are in brackets, as in the messages of the API."""
    if not _PLAIN_NAME.match(name):
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else name


def format_path(path: FilePath) -> str:
    """Return a path as text, such as `TaskGroups[0].Count`."""
    text = ""
    for step in path:
        text = f"{text}[{step}]" if isinstance(step, int) else join_path(text, step)
    return text


def spell_path(path: str) -> str:
    """Return the names that HCL has for the path of a JSON field: `group.count` for `TaskGroups[0].Count`."""
    block: BlockType | None = JOB
    names: list[str] = []
    for match in _PATH_STEP.finditer(path):
        name = match[1]
        inner = argument = None
        if name and block is not None and block.body is BodyKind.FIELDS:
            inner = next((each for each in block.blocks if name in (each.field, each.other_field)), None)
            argument = next((each for each in block.arguments if each.field == name), None)
        if name and (inner is not None or argument is not None):
            names.append(inner.name if inner is not None else argument.name)  # type: ignore[union-attr]  # one is set
            block = inner
        elif name:
            names.append(name)
        elif block is None or block.body is not BodyKind.FIELDS:
            names[-1:] = [f"{names[-1] if names else ''}{match[0]}"]
    return ".".join(names)


def parse_path(path: str) -> FilePath:
    """Return the keys and positions of a path such as `TaskGroups[0].Count`, or `Meta[a.b]` for an unusual key."""
    return tuple(
        [
            match[1] if match[1] is not None else int(match[2]) if match[2].isdecimal() else match[2]
            for match in _PATH_PART.finditer(path)
        ]
    )


def iterate_referring_texts(
    value: Any, path: FilePath = (), skipped: Collection[str] = ()
) -> Iterator[tuple[FilePath, str]]:
    """Yield the texts inside a value that contain `${`, with their paths. The fields `skipped` are left out."""
    if isinstance(value, str):
        if "${" in value:
            yield path, value
        return
    entries = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for step, item in entries:
        if step not in skipped:
            yield from iterate_referring_texts(item, (*path, step), skipped)


def find_path_value(document: Any, path: FilePath) -> Any:
    """Return the value at a path of a document, or `None` if it has none."""
    value = document
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def iterate_tasks(document: Mapping[str, Any]) -> Iterator[tuple[FilePath, Mapping[str, Any]]]:
    """Yield the tasks of a job with their paths. Values of a wrong type are left out."""
    groups = document.get("TaskGroups")
    for at, group in enumerate(groups if isinstance(groups, list) else ()):
        tasks = group.get("Tasks") if isinstance(group, dict) else None
        for number, task in enumerate(tasks if isinstance(tasks, list) else ()):
            if isinstance(task, dict):
                yield ("TaskGroups", at, "Tasks", number), task
