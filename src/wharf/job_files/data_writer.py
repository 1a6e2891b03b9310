"""Writes jobs as YAML, TOML and JSON."""

import io
import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Final

from wharf.job_files.hcl.block_types import Argument, ArgumentKind, BlockType, BodyKind
from wharf.job_files.hcl.blocks import JOB
from wharf.job_files.hcl_writer import format_short_duration
from wharf.languages.hcl.json_documents import JsonArray, JsonObject
from wharf.languages.markup import MarkupDocument, MarkupFormat, parse_markup
from wharf.languages.markup_errors import MarkupError

YAML_WIDTH: Final = 10_000
"""Lines are not broken: a broken text is harder to read than a long one."""
MAX_WRITTEN_NODES: Final = 10_000
"""Limit of the keys and values of a document that is written as YAML: writing each takes 60 µs, and reading it again 40 µs."""
MAX_FORMATTED_NODES: Final = 5_000
"""Limit of the keys and values of a YAML file that is formatted: it is read three times and written once, 0.2 ms for each."""
MAX_FORMATTED_CHARS: Final = 300_000
"""Limit of the characters of a YAML file that is formatted: 3 µs for each."""
OPAQUE_BLOCKS: Final = ("Connect", "Schedule")
"""Blocks whose fields the API does not know. Only null fields of them are left out."""
_ITEM_START: Final = re.compile(r" *(?:- +)*")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_TOML_ESCAPES: Final = re.compile(r'[\\"\x00-\x1f\x7f]')

_TOML_LINE_ESCAPES: Final = re.compile(r"[\\\x00-\x08\x0b-\x1f\x7f]")


class UnwritableValue(ValueError):
    """A format cannot hold a value. `path` is its path in the document."""


def simplify_job(document: Mapping[str, Any], *, has_durations: bool = True) -> dict[str, Any]:
    """Return a job without null fields, and without empty fields that are empty if they are missing.

    With `has_durations`, durations are texts such as `30s`, as users write them; the API has nanoseconds.
    """
    return _simplify(document, JOB, has_durations=has_durations)


def _simplify(content: Mapping[str, Any], block: BlockType | None, *, has_durations: bool) -> dict[str, Any]:
    arguments: dict[str, Argument] = {}
    blocks: dict[str, BlockType] = {}
    fixed: Mapping[str, Any] = {}
    if block is not None:
        arguments = {argument.field: argument for argument in block.arguments if not argument.operand}
        blocks = {inner.field: inner for inner in block.blocks} | {inner.other_field: inner for inner in block.blocks}
        fixed = block.fixed_fields
    simplified: dict[str, Any] = {}
    for name, value in content.items():
        argument = arguments.get(name)
        if value is None or (name in fixed and value == fixed[name]):
            continue
        if argument is not None and value in ("", 0) and value == argument.absent:
            continue  # Other values of absent arguments are not those that the API has for missing fields.
        if block is JOB and name == "Name" and value == content.get("ID"):
            continue
        if has_durations and argument is not None and argument.kind is ArgumentKind.DURATION and type(value) is int:
            value = format_short_duration(value)
        inner = blocks.get(name)
        if inner is not None and inner.field in OPAQUE_BLOCKS:
            value = _drop_nulls(value)
        elif inner is not None and inner.body is BodyKind.FIELDS:
            value = _simplify_value(value, inner, has_durations=has_durations)
        elif inner is not None and inner.body is BodyKind.TEXT_MAP:
            value = fill_empty_texts(value)
        simplified[name] = value
    return simplified


def fill_empty_texts(value: Any) -> Any:
    """Return a map of texts with empty texts in place of null, as the API reads it."""
    return {key: "" if item is None else item for key, item in value.items()} if isinstance(value, dict) else value


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _drop_nulls(item) for name, item in value.items() if item is not None}
    return [_drop_nulls(item) for item in value] if isinstance(value, list) else value


def _simplify_value(value: Any, block: BlockType, *, has_durations: bool) -> Any:
    if isinstance(value, list):
        return [_simplify_value(item, block, has_durations=has_durations) for item in value]
    if not isinstance(value, dict):
        return value
    if block.storage == "map" and all(isinstance(item, dict) for item in value.values()):
        return {key: _simplify(item, block, has_durations=has_durations) for key, item in value.items()}
    return _simplify(value, block, has_durations=has_durations)


def write_document(document: Mapping[str, Any], format: MarkupFormat) -> str:
    """Return a document as text. Raises `UnwritableValue`."""
    match format:
        case MarkupFormat.JSON:
            return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        case MarkupFormat.YAML:
            return write_yaml(document)
        case MarkupFormat.TOML:
            return write_toml(document)


# -- YAML


def write_yaml(document: Any) -> str:
    """Return a document as YAML. Texts of several lines are block texts, unless they would change. Raises `UnwritableValue`."""
    if _count_nodes(document) > MAX_WRITTEN_NODES:
        raise UnwritableValue(
            f"the job has more than {MAX_WRITTEN_NODES:,} keys and values, the limit of YAML: convert it to JSON, TOML or HCL"
        )
    text = _dump_yaml(document, has_block_texts=True)
    try:
        if parse_markup(text, MarkupFormat.YAML).value == document:
            return text
    except MarkupError:
        pass
    return _dump_yaml(document, has_block_texts=False)


def _dump_yaml(document: Any, *, has_block_texts: bool) -> str:
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

    def convert(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {_quote(str(key)): convert(item) for key, item in value.items()}
        if isinstance(value, list):
            return [convert(item) for item in value]
        if isinstance(value, str):
            if "\n" in value:
                is_block = has_block_texts and not value[0].isspace()
                return LiteralScalarString(value) if is_block else DoubleQuotedScalarString(value)
            return _quote(value)
        return value

    def _quote(text: str) -> str:
        # Characters that a plain text may not have, or that are easily misread.
        return text if text.isprintable() else DoubleQuotedScalarString(text)

    stream = io.StringIO()
    create_yaml_writer().dump(convert(document), stream)
    return stream.getvalue()


def create_yaml_writer() -> Any:  # ruamel.yaml has no types for its dumpers.
    """Return a reader and writer of YAML that keeps comments. Lists are indented by two blanks."""
    from ruamel.yaml import YAML

    writer = YAML()
    writer.composer.warn_double_anchors = False
    writer.preserve_quotes = True
    writer.width = YAML_WIDTH
    writer.indent(mapping=2, sequence=4, offset=2)
    writer.allow_unicode = True
    writer.brace_single_entry_mapping_in_flow_sequence = True  # [{a: b}] is clearer than [a: b].
    return writer


def _count_nodes(document: Any) -> int:
    """Return how many keys and values a document has."""
    count, stack = 0, [document]
    while stack:
        value = stack.pop()
        count += 1
        if isinstance(value, Mapping):
            count += len(value)
            stack += value.values()
        elif isinstance(value, list):
            stack += value
    return count


def format_yaml(text: str) -> str:
    """Return a YAML text with its indentation normalized. Comments, quotes and flow style stay.

    Line ends become those of most lines. Raises `MarkupError` if the text cannot be read or is too large, and `UnstableYaml` if
    formatting would change it.
    """
    lines = text.replace("\r\n", "\n")
    formatted = _format_lines(lines)
    if lines == text:
        return formatted
    if parse_markup(lines, MarkupFormat.YAML).value != parse_markup(text, MarkupFormat.YAML).value:
        raise UnstableYaml(text)
    has_long_ends = text.count("\r\n") * 2 > text.count("\n")
    return formatted.replace("\n", "\r\n") if has_long_ends else formatted


def _format_lines(text: str) -> str:
    """Return a YAML text whose lines end with LF, formatted."""
    document = parse_markup(text, MarkupFormat.YAML)
    if len(text) > MAX_FORMATTED_CHARS or _count_nodes(document.value) > MAX_FORMATTED_NODES:
        raise MarkupError(
            f"the file has more than {MAX_FORMATTED_NODES:,} keys and values, or {MAX_FORMATTED_CHARS:,} characters, "
            "the limits of YAML files that are formatted",
            fix="use the formatter of your editor",
        )
    writer = create_yaml_writer()
    stream = io.StringIO()
    writer.dump(writer.load(text), stream)
    formatted = stream.getvalue()
    has_comments = "#" in text
    try:
        formatted_document = parse_markup(formatted, MarkupFormat.YAML)
        if has_comments and formatted != (aligned := _align_comments(document, text, formatted_document, formatted)):
            formatted, formatted_document = aligned, parse_markup(aligned, MarkupFormat.YAML)
    except MarkupError:
        raise UnstableYaml(text) from None
    is_same = formatted_document.value == document.value
    if not is_same or (has_comments and list_yaml_comments(text) != list_yaml_comments(formatted)):
        raise UnstableYaml(text)
    return formatted


def _align_comments(document: MarkupDocument, text: str, formatted_document: MarkupDocument, formatted: str) -> str:
    """Return the formatted text with each comment on a line of its own below the line to which it belonged.

    The writer moves values, but it leaves such comments in their columns.
    """
    original = _list_comment_lines(document, text)
    lines = formatted.split("\n")
    moved = _list_comment_lines(formatted_document, formatted)
    if len(original) != len(moved):
        return formatted
    for (_, column, before, after), (number, _, new_before, new_after) in zip(original, moved, strict=True):
        for columns, new_columns in ((after, new_after), (before, new_before)):
            if column in columns and len(columns) == len(new_columns):
                lines[number] = " " * new_columns[columns.index(column)] + lines[number].lstrip(" ")
                break
    return "\n".join(lines)


def _list_comment_lines(document: MarkupDocument, text: str) -> list[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
    """Return the number and column of each line that is a comment, and the columns of the values before and after it."""
    inside = _list_lines_of_texts(document, text)
    found: list[tuple[int, int, tuple[int, ...], tuple[int, ...]]] = []
    before: tuple[int, ...] = (0,)
    pending: list[tuple[int, int, tuple[int, ...]]] = []
    for number, line in enumerate(text.split("\n")):
        content = line.lstrip(" ")
        if number in inside or not content.strip():
            continue
        if content.startswith("#"):
            pending.append((number, len(line) - len(content), before))
            continue
        before = _list_columns(line)
        found += [(*comment, before) for comment in pending]
        pending.clear()
    return found + [(*comment, (0,)) for comment in pending]


def _list_columns(line: str) -> tuple[int, ...]:
    """Return the columns at which values of a line begin: those of the dashes of lists, and that of the value after them."""
    start = _ITEM_START.match(line)
    assert start is not None, "the pattern matches every line"
    dashes = [at for at, character in enumerate(start[0]) if character == "-"]
    return (*dashes, start.end())


def _list_lines_of_texts(document: MarkupDocument, text: str) -> set[int]:
    """Return the numbers of the lines that are inside of a text of several lines."""
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    inside: set[int] = set()
    stack = [document.build_tree()]
    while stack:
        node = stack.pop()
        if isinstance(node, JsonObject):
            stack += [entry.value for entry in node.properties]
        elif isinstance(node, JsonArray):
            stack += node.items
        elif "\n" in text[node.start : node.end]:
            first, last = bisect_right(starts, node.start) - 1, bisect_right(starts, max(node.start, node.end - 1)) - 1
            inside |= set(range(first + 1, last + 1))
    return inside


class UnstableYaml(Exception):
    """Formatting would change a document, or lose a comment of it."""


def list_yaml_comments(text: str) -> list[str]:
    """Return the comments of a YAML text."""
    from ruamel.yaml import YAML

    comments: list[str] = []

    def collect(comment: Any) -> None:
        if isinstance(comment, list):
            for each in comment:
                collect(each)
        elif comment is not None:
            comments.extend(line.strip() for line in comment.value.splitlines() if line.strip())

    for token in YAML().scan(text):
        collect(getattr(token, "comment", None))
    return sorted(comments)


# -- TOML


def write_toml(document: Mapping[str, Any]) -> str:
    """Return a document as TOML. Raises `UnwritableValue` for null inside a list: TOML has no null."""
    lines: list[str] = []
    _write_table(document, (), lines)
    return "\n".join(lines).strip("\n") + "\n"


def _write_table(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    """Add the lines of a table: values first, because they would belong to the tables after them."""
    tables: list[tuple[str, Any]] = []
    for key, value in table.items():
        if _is_table(value) or _is_list_of_tables(value):
            tables.append((key, value))
        elif value is not None:
            written = _format_toml_lines(value) if isinstance(value, str) else None
            lines.append(f"{_format_key(key)} = {written or _format_toml(value, (*path, key))}")
    for key, value in tables:
        inner = (*path, key)
        name = ".".join(map(_format_key, inner))
        for item in value if isinstance(value, list) else [value]:
            if isinstance(value, list):
                lines += ["", f"[[{name}]]"]
            elif not item or not all(_is_table(part) or _is_list_of_tables(part) for part in item.values()):
                lines += ["", f"[{name}]"]  # The headers of inner tables name this one too.
            _write_table(item, inner, lines)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_list_of_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_table(item) for item in value)


def _format_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _format_toml_text(key)


def _format_toml(value: Any, path: tuple[str, ...]) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _format_toml_text(value)
        case list():
            return f"[{', '.join(_format_toml(item, path) for item in value)}]"
        case Mapping():
            entries = [
                f"{_format_key(key)} = {_format_toml(item, (*path, key))}"
                for key, item in value.items()
                if item is not None
            ]
            return "{ " + ", ".join(entries) + " }" if entries else "{}"
    raise UnwritableValue(f"{'.'.join(path)}: TOML has no null")


def _format_toml_lines(text: str) -> str | None:
    """Return a text of several lines as TOML has it, or `None` for any other text."""
    if "\n" not in text[:-1] or not text.endswith("\n"):
        return None
    escaped = _TOML_LINE_ESCAPES.sub(_escape_toml, text).replace('"""', '""\\"')
    return f'"""\n{escaped}"""'


def _format_toml_text(text: str) -> str:
    return '"' + _TOML_ESCAPES.sub(_escape_toml, text) + '"'


def _escape_toml(match: re.Match[str]) -> str:
    character = match[0]
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}.get(character, f"\\u{ord(character):04x}")
