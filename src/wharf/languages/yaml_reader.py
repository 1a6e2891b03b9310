"""Reads YAML as the values that JSON has, exactly as they are written.

Import this module only where YAML is read, because it loads ruamel.yaml.
"""

import copy
from functools import cached_property
from typing import Any, Final, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.events import AliasEvent, CollectionStartEvent
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.parser import Parser
from ruamel.yaml.scanner import Scanner

from wharf.languages.exact_values import MAX_DEPTH, find_number_problem, find_text_problem
from wharf.languages.markup_errors import shorten

MAX_COLLECTION_ITEMS: Final = 5_000
"""Limit of the items of one list or map in YAML, equal to that of servers (`MAX_ITEMS`); protects the user's time."""
MAX_NODES: Final = 20_000
"""Limit of the keys, values, lists and maps of a document. Reading each takes 50 µs, because the parser is written in Python: a
second for all."""
MAX_EXPANDED_VALUES: Final = 100_000
"""Limit of the keys and values after aliases are expanded and maps are merged; protects memory from nested aliases."""
_PREFIX: Final = "tag:yaml.org,2002:"
_TEXT_TAG: Final = f"{_PREFIX}str"
_MERGE_TAG: Final = f"{_PREFIX}merge"
_READ_AS_TEXT_TAGS: Final = frozenset((f"{_PREFIX}timestamp", f"{_PREFIX}value"))
"""Dates, and a single `=`, as in `Operand: =`."""
_NUMBER_TAGS: Final = frozenset((f"{_PREFIX}int", f"{_PREFIX}float"))
_RESOLVED_TAGS: Final = _NUMBER_TAGS | {f"{_PREFIX}bool", f"{_PREFIX}null"}
_UNSUPPORTED_TAGS: Final = frozenset(f"{_PREFIX}{name}" for name in ("binary", "set", "omap", "pairs"))
"""Types that JSON does not have."""


class BoundedScanner(Scanner):
    """The scanner of ruamel.yaml. It reads ahead for the end of a key, in the square of the open brackets, so it limits them."""

    def fetch_flow_collection_start(self, *arguments: Any, **options: Any) -> None:
        """Read an opening bracket. Raises `RefusedValue`."""
        if self.flow_level >= MAX_DEPTH:
            raise _make_depth_error(self.reader.get_mark())
        super().fetch_flow_collection_start(*arguments, **options)


class RefusedValue(ComposerError):
    """A value that YAML has and JSON cannot hold, or that is too large. Its problem and fix are sentences for users."""

    def __init__(self, problem: str, start: Any, end: int, fix: str = "") -> None:
        super().__init__(None, None, problem, start)
        self.fix = fix
        self.end = end


class FastParser(Parser):
    """The parser of ruamel.yaml, which looks up its scanner several times for each event."""

    @cached_property
    def scanner(self) -> Any:
        """The scanner of the document."""
        return super().scanner


class ExactComposer(Composer):
    """Builds nodes of a YAML document. Refuses values that JSON cannot hold, and documents that are too large or too deep.

    Keys and dates are the texts that the document has: `1.10`, `true` and `2020-01-01 00:00:00` stay as they are.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.warn_double_anchors = False  # An anchor may be set again: an alias means the last one above it.
        self.last_root: Any = None
        """The root of the last document, with the places of all values."""
        self._nodes = 0
        self._expanded = 0
        self._level = 0
        self._deepest = 0
        self._sizes: dict[str, tuple[int, int]] = {}
        """The expanded values of the node of each anchor, and the levels inside it. An open node has none."""

    def get_node(self) -> Any:
        """Return the root of the next document."""
        self.last_root = super().get_node()
        return self.last_root

    def compose_node(self, parent: Any, index: Any) -> Any:  # ruamel.yaml has no types for nodes.
        """Build the next node: an item of the list or map `parent`, or a key of a map if `index` is `None`."""
        if parent is not None and len(parent.value) > MAX_COLLECTION_ITEMS:
            problem = f"a list or map may hold at most {MAX_COLLECTION_ITEMS:,} items, and this one holds more"
            fix = "remove some, or store them in a file that the task reads"
            raise _make_error(problem, parent.start_mark, fix)
        event = self.parser.peek_event()
        self._nodes += 1
        self._expanded += 1
        if self._nodes > MAX_NODES:
            problem = f"the file has more than {MAX_NODES:,} keys and values"
            raise _make_error(problem, event.start_mark, "write it in JSON or HCL, which are read faster")
        if isinstance(event, AliasEvent):
            self._count_alias(event, is_merged=getattr(index, "tag", None) == _MERGE_TAG)
            node = super().compose_node(parent, index)
        elif isinstance(event, CollectionStartEvent):
            node = self._compose_collection(event, parent, index)
        else:
            node = super().compose_node(parent, index)
            if node.anchor:
                self._sizes[node.anchor] = (1, 0)
        if isinstance(node, ScalarNode) and node.anchor and not node.value and node.style is None:
            _refuse(node, "a value that begins with & needs quotes", f'write "&{shorten(node.anchor)}"')
        if node.tag in _UNSUPPORTED_TAGS:
            name = node.tag.removeprefix(_PREFIX)
            _refuse(node, f"the type !!{name} is not supported", "write a text, a number, a list or a map")
        if parent is not None and index is None:
            return self._convert_key(node)
        if isinstance(node, ScalarNode):
            self._check_scalar(node)
        return node

    def _compose_collection(self, event: Any, parent: Any, index: Any) -> Any:
        """Build a list or map, and store how large it is if aliases can repeat it."""
        self._level += 1
        outer_deepest, self._deepest = self._deepest, self._level
        expanded = self._expanded
        self._check_depth(event)
        if event.anchor:
            self._sizes.pop(event.anchor, None)
        node = super().compose_node(parent, index)
        if event.anchor:
            self._sizes[event.anchor] = (self._expanded - expanded + 1, self._deepest - self._level + 1)
        self._level -= 1
        self._deepest = max(outer_deepest, self._deepest)
        return node

    def _count_alias(self, event: Any, *, is_merged: bool) -> None:
        """Count the values that an alias stands for. Raises `RefusedValue`."""
        if event.anchor not in self.anchors:
            return  # The error of the parser is better.
        if event.anchor not in self._sizes:
            _refuse(
                event, f"the alias *{shorten(event.anchor)} is inside of the list or map that it repeats", "remove it"
            )
        size, levels = self._sizes[event.anchor]
        self._expanded += size
        if self._expanded > MAX_EXPANDED_VALUES:
            problem = f"the file has more than {MAX_EXPANDED_VALUES:,} keys and values once its aliases are expanded"
            _refuse(event, problem, "use fewer aliases, or repeat smaller values")
        self._deepest = max(self._deepest, self._level + levels - is_merged)
        self._check_depth(event)

    def _check_depth(self, event: Any) -> None:
        if self._deepest > MAX_DEPTH:
            raise _make_depth_error(event.start_mark)

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


def create_yaml_reader() -> YAML:
    """Return a YAML parser that stops at the first value that JSON cannot hold, and at a limit of the document."""
    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 2)  # In YAML 1.2, `on` and `no` are texts, not bools.
    reader.Scanner = BoundedScanner
    reader.Parser = FastParser
    reader.Composer = ExactComposer
    return reader


def _refuse(node: Any, problem: str, fix: str = "") -> NoReturn:
    """Raise the error of a node or event."""
    raise RefusedValue(problem, node.start_mark, node.end_mark.index, fix)


def _make_error(problem: str, start: Any, fix: str) -> RefusedValue:
    """Return an error that marks one character."""
    return RefusedValue(problem, start, start.index + 1, fix)


def _make_depth_error(start: Any) -> RefusedValue:
    return _make_error(f"nested more than {MAX_DEPTH} deep", start, "write it flatter")
