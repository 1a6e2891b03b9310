"""The fields of a job whose values come from sensitive variables of its file (record 0249).

A job file is evaluated by the client, which sends the paths of these fields beside the job, as JSON pointers. Servers store them
with the source of the job, and hide the fields in differences between versions.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Self, TypeVar

import msgspec

from wharf.contract.model.decoding import FieldPath, format_path
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.refusal import invalid_request
from wharf.languages.hcl.diagnostics import HIDDEN

T = TypeVar("T")

MAX_SENSITIVE_FIELDS: Final = 1_000
"""Fields of one job. A client sends those around them if there are more. Limits the size of the stored record."""
MAX_POINTER_CHARS: Final = 1_024
"""Characters of one pointer, for the same reason. A longer path is cut at a field around it."""


def write_pointers(paths: Iterable[Sequence[str | int]]) -> tuple[str, ...]:
    """Return the JSON pointers of fields. If there are too many, they name the objects around these fields."""
    shortened = {tuple(map(_escape, map(str, path))) for path in paths}
    while len(shortened) > MAX_SENSITIVE_FIELDS:
        length = max(map(len, shortened))
        shortened = {path[: length - 1] for path in shortened}
    return tuple(sorted({_join(path) for path in shortened}))


def _escape(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def _join(path: tuple[str, ...]) -> str:
    """Return the pointer of a path, or of the nearest field around it that is not too long."""
    while len(text := "".join(f"/{step}" for step in path)) > MAX_POINTER_CHARS:
        path = path[:-1]
    return text


def parse_pointer(pointer: str) -> tuple[str, ...]:
    """Return the steps of a JSON pointer. The pointer of the whole job is empty."""
    return tuple([step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]])


def check_pointers(pointers: Sequence[str] | None, field_path: str) -> None:
    """Raise `Refusal` if a text is not a JSON pointer."""
    for position, pointer in enumerate(pointers or ()):
        if pointer and not pointer.startswith("/"):
            raise invalid_request(
                f"{field_path}[{position}]: expected a JSON pointer such as /TaskGroups/0/Tasks/0/Env/PASSWORD"
            )


class HiddenFields:
    """The hidden fields of several versions of a job, as a tree. Groups and tasks are found by their names.

    Names match in any case, because those of fields do. More may be hidden than necessary, never less.
    `is_whole`: the object is hidden, with all that is inside it.
    """

    __slots__ = ("_children", "is_whole")

    def __init__(self) -> None:
        self.is_whole = False
        self._children: dict[str, HiddenFields] = {}

    def add_pointers(self, pointers: Iterable[str] | None, job: Job) -> Self:
        """Add the fields of one version of the job."""
        for pointer in pointers or ():
            node: HiddenFields = self
            for step in _name_groups(parse_pointer(pointer), job):
                node = node._children.setdefault(step.lower(), HiddenFields())
            node.is_whole = True
        return self

    def find(self, step: str) -> "HiddenFields | None":
        """Return the hidden fields inside a field or an entry of a map, or `None` if nothing in it is hidden."""
        if self.is_whole:
            return self
        return self._children.get(step.lower())

    def join_items(self) -> "HiddenFields":
        """Return the fields that are hidden in any item of a list. Items have other positions in other versions."""
        joined = HiddenFields()
        joined.is_whole = self.is_whole
        for node in self._children.values():
            joined._add(node)
        return joined

    def _add(self, other: "HiddenFields") -> None:
        self.is_whole = self.is_whole or other.is_whole
        for step, node in other._children.items():
            self._children.setdefault(step, HiddenFields())._add(node)

    def hides_part(self, steps: Sequence[str]) -> bool:
        """Return whether the value at a path inside this field is hidden."""
        node: HiddenFields | None = self
        for step in steps:
            node = node.find(step) if node is not None else None
        return node is not None and node.is_whole


def _name_groups(steps: Sequence[str], job: Job) -> tuple[str, ...]:
    """Return the steps with the names of groups and tasks instead of their positions."""
    named = list(steps)
    if len(named) > 1 and named[0] == "TaskGroups":
        group = _get_item(job.groups, named[1])
        if group is not None:
            named[1] = group.name
            if len(named) > 3 and named[2] == "Tasks" and (task := _get_item(group.tasks or (), named[3])) is not None:
                named[3] = task.name
    return tuple(named)


def _get_item(items: Sequence[T], position: str) -> T | None:
    return items[int(position)] if position.isdecimal() and int(position) < len(items) else None


def list_masked_fields(job: Job) -> list[str]:
    """Return the paths of the fields that contain the mark of a hidden value.

    A user has copied it from an output. Longer templates may contain the same text with another meaning.
    """
    if HIDDEN.encode() not in msgspec.msgpack.encode(job):
        return []
    found: list[str] = []
    _collect_masked(msgspec.to_builtins(job), [], found)
    return found


def _collect_masked(value: object, path: FieldPath, found: list[str]) -> None:
    if isinstance(value, str):
        if value == HIDDEN or (HIDDEN in value and path[-1:] != ["EmbeddedTmpl"]):
            found.append(format_path(path))
        return
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for step, item in items:
        _collect_masked(item, [*path, step], found)


def hide_text(text: str) -> str:
    """Return the mark that stands for a hidden text. An empty text says that a field has no value, so it stays."""
    return HIDDEN if text else ""
