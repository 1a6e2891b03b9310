"""Reads YAML as the values that JSON has, exactly as they are written.

Import this module only where YAML is read, because it loads ruamel.yaml.
"""

import copy
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from wharf.languages.exact_values import find_number_problem, find_text_problem

MAX_COLLECTION_ITEMS: Final = 5_000
"""Limit of the items of one list or map in YAML, equal to that of servers (`MAX_ITEMS`); protects the user's time."""
MAX_MERGED_ENTRIES: Final = 100_000
"""Limit of the entries that the merge keys of a document copy, which takes 0.1 s. Each map may merge several that merge others."""
_PREFIX: Final = "tag:yaml.org,2002:"
_TEXT_TAG: Final = f"{_PREFIX}str"
_MERGE_TAG: Final = f"{_PREFIX}merge"
_READ_AS_TEXT_TAGS: Final = frozenset((f"{_PREFIX}timestamp", f"{_PREFIX}value"))
"""Dates, and a single `=`, as in `Operand: =`."""
_NUMBER_TAGS: Final = frozenset((f"{_PREFIX}int", f"{_PREFIX}float"))
_RESOLVED_TAGS: Final = _NUMBER_TAGS | {f"{_PREFIX}bool", f"{_PREFIX}null"}
_UNSUPPORTED_TAGS: Final = frozenset(f"{_PREFIX}{name}" for name in ("binary", "set", "omap", "pairs"))
"""Types that JSON does not have."""


class RefusedValue(ComposerError):
    """A value that YAML has and JSON cannot hold, or that is too large. Its problem and fix are sentences for users."""

    def __init__(self, problem: str, node: Any, fix: str = "", *, is_key_only: bool = False) -> None:
        super().__init__(None, None, problem, node.start_mark)
        self.fix = fix
        self.end: int = node.start_mark.index + 1 if is_key_only else node.end_mark.index


class ExactComposer(Composer):
    """Builds nodes of a YAML document. Refuses values that JSON cannot hold, and lists and maps with too many items.

    Keys and dates are the texts that the document has: `1.10`, `true` and `2020-01-01 00:00:00` stay as they are.
    """

    last_root: Any = None
    """The root of the last document, with the places of all values."""

    def get_node(self) -> Any:
        """Return the root of the next document."""
        self.last_root = super().get_node()
        return self.last_root

    def compose_node(self, parent: Any, index: Any) -> Any:  # ruamel.yaml has no types for nodes.
        """Build the next node: an item of the list or map `parent`, or a key of a map if `index` is `None`."""
        if parent is not None and len(parent.value) > MAX_COLLECTION_ITEMS:
            problem = f"a list or map may hold at most {MAX_COLLECTION_ITEMS:,} items, and this one holds more"
            fix = "remove some, or store them in a file that the task reads"
            raise RefusedValue(problem, parent, fix, is_key_only=True)
        node = super().compose_node(parent, index)
        if isinstance(node, ScalarNode) and node.anchor and not node.value and node.style is None:
            _refuse(node, "a value that begins with & needs quotes", f'write "&{node.anchor}"')
        if node.tag in _UNSUPPORTED_TAGS:
            name = node.tag.removeprefix(_PREFIX)
            _refuse(node, f"the type !!{name} is not supported", "write a text, a number, a list or a map")
        if parent is not None and index is None:
            return self._convert_key(node)
        if isinstance(node, ScalarNode):
            self._check_scalar(node)
        return node

    def _convert_key(self, node: Any) -> Any:
        """Return the node of a key as a text. The key `<<` stays: it merges another map."""
        if not isinstance(node, ScalarNode):
            _refuse(node, "a key must be a text, not a list or a map")
        if problem := find_text_problem(node.value):
            _refuse(node, problem)
        if node.tag in (_TEXT_TAG, _MERGE_TAG):
            return node
        key = copy.copy(node)  # An alias may use the same node as a value.
        key.tag = _TEXT_TAG
        return key

    def _check_scalar(self, node: Any) -> None:
        """Refuse a value that cannot be sent exactly, and make a date or a single `=` a text."""
        if node.tag in _READ_AS_TEXT_TAGS:
            node.tag = _TEXT_TAG
        if node.tag == _TEXT_TAG:
            problem = find_text_problem(node.value)
        elif node.tag in _NUMBER_TAGS:
            problem = find_number_problem(node.value) or self._find_type_problem(node)
        else:
            problem = self._find_type_problem(node)
        if problem:
            _refuse(node, problem)

    def _find_type_problem(self, node: Any) -> str:
        """Return why the value does not have the type that its tag states, such as `!!int x`; empty if it has."""
        if node.tag not in _RESOLVED_TAGS:
            return ""
        found = str(self.loader.resolver.resolve(ScalarNode, node.value, (True, False)))
        if found == node.tag or (found in _NUMBER_TAGS and node.tag.endswith("float")):
            return ""
        return f'"{node.value[:40]}" is not of the type !!{node.tag.removeprefix(_PREFIX)}'


class BoundedConstructor(SafeConstructor):
    """Builds the values of a YAML document. Limits how many entries its merge keys copy."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._copies_left = MAX_MERGED_ENTRIES
        self._open_nodes: set[int] = set()

    def flatten_mapping(self, node: Any) -> None:
        """Replace the merge keys of a map by the entries of the maps that they name. Raises `RefusedValue`."""
        if id(node) in self._open_nodes:
            return  # A map that merges itself.
        self._open_nodes.add(id(node))
        for key, value in node.value:
            if key.tag == _MERGE_TAG:
                for merged in value.value if isinstance(value, SequenceNode) else [value]:
                    self._count_copies(key, merged)
        self._open_nodes.remove(id(node))
        super().flatten_mapping(node)

    def _count_copies(self, key: Any, merged: Any) -> None:
        """Count the entries of a map before they are copied."""
        if isinstance(merged, MappingNode):
            self.flatten_mapping(merged)
            self._copies_left -= len(merged.value)
        if self._copies_left < 0:
            problem = f"the keys << of the file copy more than {MAX_MERGED_ENTRIES:,} entries"
            _refuse(key, problem, "merge fewer maps, or smaller ones")


def create_yaml_reader() -> YAML:
    """Return a YAML parser that stops at the first value that JSON cannot hold, and at the first list or map with more
    than `MAX_COLLECTION_ITEMS` items.

    Servers refuse such a list or map. The parser needs about 0.1 ms for each item, so that a large file would take
    seconds before it is refused.
    """
    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 2)  # In YAML 1.2, `on` and `no` are texts, not bools.
    reader.Composer = ExactComposer
    reader.Constructor = BoundedConstructor
    return reader


def _refuse(node: Any, problem: str, fix: str = "") -> None:
    raise RefusedValue(problem, node, fix)
