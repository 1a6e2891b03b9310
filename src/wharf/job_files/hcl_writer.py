"""Writes jobs and values as HCL. The blocks and their arguments are those of the table `wharf.job_files.hcl.blocks`."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from wharf.contract.model.jobs.constraints import Operand
from wharf.contract.model.times import format_duration
from wharf.job_files.hcl.block_types import Argument, ArgumentKind, BlockType, BodyKind, Storage
from wharf.job_files.hcl.blocks import JOB
from wharf.job_files.hcl.places import join_path
from wharf.languages.hcl.budget import Budget
from wharf.languages.hcl.calls import FunctionPorts
from wharf.languages.hcl.diagnostics import ExpressionError, SourceFile
from wharf.languages.hcl.expression_parser import ExpressionParser
from wharf.languages.hcl.nodes import Scope
from wharf.languages.hcl.reader import NAME, ParseError
from wharf.languages.hcl.template_texts import (
    MARKERS,
    escape_quoted,
    escape_template,
    find_interpolation,
    quote_template,
    split_template,
)

INDENTATION: Final = "  "
DEFAULT_LABEL: Final = "job"
"""The label of a job whose ID is computed."""
LABEL_ITERATOR: Final = "label"
"""The iterator of dynamic blocks that are written for a computed label. No node replaces such a name."""
MAX_LINE_CHARS: Final = 100
"""A longer list is written on several lines."""
HEREDOC_NAMES: Final = ("EOF", "EOT", "END", "END_OF_TEXT")
"""Names that end a heredoc. The first is used that no line of the text has."""
MIN_HEREDOC_LINES: Final = 2
UNCHANGED_LINE: Final = "\0"
"""Marks a line that goes on with an expression of the user. An indentation would change the heredocs in it."""
_NODE_REFERENCE: Final = re.compile(r"(?!(?:var|local|true|false|null)\b)[A-Za-z_][\w-]*(?:\.[\w-]+)*")
"""A reference that the node replaces."""
_KEYWORDS: Final = frozenset(("true", "false", "null", "for", "if"))
_SCALING_LABEL: Final = "vertical_"


class Markers(Enum):
    """What `${` and `%{` in a text of a document mean, and so how they are written."""

    ESCAPE = "escape"  # Text. A values file holds no names.
    KEEP_REFERENCES = "keep references"  # References for nodes; anything else is text.
    KEEP_ALL = "keep all"  # The text is a template.


class _NoRandom:
    """No text that is written calls a function that draws random bytes."""

    def draw_bytes(self, count: int) -> bytes:
        raise AssertionError(count)


@dataclass(slots=True)
class WrittenJob:
    """A job as HCL. `lost_paths` are fields that HCL cannot express."""

    text: str
    lost_paths: list[str] = field(default_factory=list)


def write_hcl_job(
    document: Mapping[str, Any],
    *,
    variables: Mapping[str, Any] | None = None,
    local_values: Mapping[str, Any] | None = None,
) -> WrittenJob:
    """Return a job as HCL. Null fields, and fields that have the value of an absent argument, are left out.

    With `variables` or `local_values`, texts are templates, as in a file in YAML with these keys.
    """
    is_template = variables is not None or local_values is not None
    writer = _JobWriter(Markers.KEEP_ALL if is_template else Markers.KEEP_REFERENCES)
    lines = [
        *writer.write_variables(variables or {}),
        *writer.write_local_values(local_values or {}),
        *writer.write_job(document),
    ]
    text = "".join(f"{line}\n" for line in lines)
    return WrittenJob(text.replace(f"\n{UNCHANGED_LINE}", "\n"), writer.lost_paths)


class _JobWriter:
    """Writes the bodies of blocks, and collects what HCL cannot express."""

    def __init__(self, markers: Markers) -> None:
        self.lost_paths: list[str] = []
        self._markers = markers

    def _format(self, value: Any) -> str:
        return format_expression(value, markers=self._markers)

    def write_variables(self, variables: Mapping[str, Any]) -> Iterator[str]:
        """Yield the lines of the declarations of variables. A value that is not a map is a default."""
        for name, declaration in variables.items():
            content = declaration if isinstance(declaration, dict) else {"default": declaration}
            arguments = [
                (key, _keep_lines(str(value).strip()) if key == "type" else self._format(value))
                for key, value in content.items()
                if key != "validation" and (key != "default" or declaration is not None)
            ]
            body = align_arguments(arguments)
            rules = content.get("validation") or []
            for rule in rules if isinstance(rules, list) else [rules]:
                lines = align_arguments(
                    [
                        (key, _format_condition(str(value)) if key == "condition" else self._format(value))
                        for key, value in rule.items()
                    ]
                )
                body += ["", *_wrap("validation", lines)] if body else _wrap("validation", lines)
            yield from _wrap(f"variable {format_label(name)}", body)
            yield ""

    def write_local_values(self, values: Mapping[str, Any]) -> Iterator[str]:
        """Yield the lines of the local values."""
        if values:
            yield from _wrap("locals", align_arguments([(name, self._format(value)) for name, value in values.items()]))
            yield ""

    def write_job(self, document: Mapping[str, Any]) -> Iterator[str]:
        """Yield the lines of the job. A computed ID is an argument, because no label is computed."""
        id = str(document.get("ID") or "")
        label = self._format_label(id)
        if label:
            body = self.write_body(JOB, document, "", ("ID",))
        else:
            label = format_label(DEFAULT_LABEL)
            body = self.write_body(JOB, {**document, "Name": document.get("Name") or id}, "")
        yield from _wrap(f"{JOB.name} {label}", body)

    def _format_label(self, text: str) -> str:
        """Return a label in quotes, or an empty text if it is computed. References for nodes are texts in it."""
        if self._markers is not Markers.KEEP_ALL:
            return format_label(text)
        pieces: list[str] = []
        for is_code, piece in split_template(text):
            if is_code and _NODE_REFERENCE.fullmatch(piece[2:-1]) is None:
                return ""
            pieces.append(f"${piece}" if is_code else escape_quoted(piece))
        return f'"{"".join(pieces)}"'

    def write_body(
        self, block: BlockType, content: Mapping[str, Any], path: str, written_fields: Sequence[str] = ()
    ) -> list[str]:
        """Return the lines of a body. `written_fields` are those that the label holds."""
        content = _use_spellings(block, content)
        if block is JOB and written_fields and content.get("Name") == content.get("ID"):
            written_fields = block.label_fields
        known = {*written_fields, *block.fixed_fields, *(argument.field for argument in block.arguments)}
        arguments: list[tuple[str, str]] = []
        for argument in self._list_arguments(block, content):
            if argument.field not in written_fields:
                self._add_argument(arguments, argument, content)
        for inner in block.blocks:
            if inner.short_argument and (short := _find_short_form(inner, content.get(inner.field))) is not None:
                arguments.append((inner.name, self._format(short)))
                known.add(inner.field)
                content = {name: value for name, value in content.items() if name != inner.field}
        lines = align_arguments(arguments)
        # Groups and tasks are long, so they come last.
        for inner in sorted(block.blocks, key=lambda each: each.name in ("group", "task")):
            if not inner.field or (inner.deprecated and inner.storage is Storage.LIST):
                continue
            for name in (inner.field, inner.other_field):
                if name:
                    known.add(name)
            inner_lines = self._write_blocks(inner, content, path)
            lines += ["", *inner_lines] if lines and inner_lines else inner_lines
        self.lost_paths += [
            join_path(path, name) for name, value in content.items() if name not in known and value not in (None, "", 0)
        ]
        self.lost_paths += [
            join_path(path, name)
            for name, default in block.fixed_fields.items()
            if block is JOB and content.get(name) not in (None, "", 0, default) and name not in _SERVER_FIELDS
        ]
        return lines

    @staticmethod
    def _list_arguments(block: BlockType, content: Mapping[str, Any]) -> Iterator[Argument]:
        """Yield the arguments that are written: of comparisons, the plain ones, or the short form of `distinct_hosts`."""
        operand = content.get("Operand")
        has_operands = any(argument.operand for argument in block.arguments)
        is_distinct = operand in (Operand.DISTINCT_HOSTS, Operand.DISTINCT_PROPERTY)
        for argument in block.arguments:
            if not has_operands or argument.field == "Weight":
                yield argument
            elif is_distinct:
                is_short = argument.operand == operand
                if is_short or (operand == Operand.DISTINCT_PROPERTY and argument.name == "value"):
                    yield argument
            elif not argument.operand:
                yield argument

    def _add_argument(self, arguments: list[tuple[str, str]], argument: Argument, content: Mapping[str, Any]) -> None:
        """Add an argument, unless it has the value that it has if it is absent."""
        value = content.get(argument.field)
        if value is None or (value == argument.absent and type(value) is type(argument.absent)):
            return
        if argument.operand == Operand.DISTINCT_HOSTS and value in ("", "true", "false"):
            value = value != "false"
        if argument.kind is ArgumentKind.DURATION and isinstance(value, int):
            value = format_short_duration(value)
        if self._markers is Markers.KEEP_ALL and argument.kind in _CONVERTED_KINDS:
            value = _drop_conversions(value)
        arguments.append((argument.name, self._format(value)))

    def _write_blocks(self, block: BlockType, content: Mapping[str, Any], path: str) -> list[str]:
        """Return the lines of all blocks of a type, with a blank line between those of several lines."""
        lines: list[str] = []
        for value, item_path in self._list_items(block, content, path):
            if value == {} and any(argument.operand for argument in block.arguments):
                continue  # A comparison that a template computes.
            item_lines = self._write_block(block, value, item_path)
            if lines and (len(item_lines) > 1 or block.body is BodyKind.FIELDS):
                lines.append("")
            lines += item_lines
        return lines

    def _list_items(self, block: BlockType, content: Mapping[str, Any], path: str) -> Iterator[tuple[Any, str]]:
        """Yield the objects that are written as blocks of a type, with their paths."""
        for name in (block.field, block.other_field):
            value = content.get(name) if name else None
            own_path = join_path(path, name) if name else ""
            if value is None:
                continue
            if block.storage is Storage.MAP and isinstance(value, dict):
                for key, item in value.items():
                    has_fields = item is None or isinstance(item, dict)
                    yield {**(item or {}), block.label_fields[0]: key} if has_fields else item, join_path(own_path, key)
            elif isinstance(value, list):
                for at, item in enumerate(value):
                    yield item, f"{own_path}[{at}]"
            else:
                yield value, own_path

    def _write_block(self, block: BlockType, value: Any, path: str) -> list[str]:
        if block.has_argument_form and isinstance(value, str) and self._markers is Markers.KEEP_ALL:
            return f"{block.name} = {self._format(_drop_conversions(value))}".split("\n")
        if not isinstance(value, dict):
            self.lost_paths.append(path)
            return []
        if block.body is BodyKind.FREE_FORM:
            return _wrap(block.name, self._write_free_form(value, path))
        if block.body is BodyKind.FIELDS:
            label_fields = block.label_fields or (("Type",) if block.label else ())
            label = str(value.get(label_fields[0]) or "").removeprefix(_SCALING_LABEL) if label_fields else ""
            body = self.write_body(block, value, path, label_fields)
            if not block.label:
                return _wrap(block.name, body)
            written = self._format_label(label)
            return _wrap(f"{block.name} {written}", body) if written else self._wrap_dynamic(block, label, body)
        value = _drop_conversions(value) if self._markers is Markers.KEEP_ALL else value
        if block.body is BodyKind.TEXT_MAP:  # Null is an empty text in the API, and an error in HCL.
            value = {key: "" if item is None else item for key, item in value.items()}
        if all(NAME.fullmatch(key) for key in value):
            body = align_arguments([(key, self._format(item)) for key, item in value.items() if item is not None])
        elif block.has_argument_form:
            return f"{block.name} = {self._format(value)}".split("\n")
        else:
            self.lost_paths += [join_path(path, key) for key in value if not NAME.fullmatch(key)]
            body = align_arguments([(key, self._format(item)) for key, item in value.items() if NAME.fullmatch(key)])
        return _wrap(block.name, body)

    def _wrap_dynamic(self, block: BlockType, label: str, body: Sequence[str]) -> list[str]:
        """Return the lines of a block with a computed label: only a dynamic block has one."""
        arguments = [
            ("for_each", format_expression([label], markers=self._markers)),
            ("iterator", LABEL_ITERATOR),
            ("labels", f"[{LABEL_ITERATOR}.value]"),
        ]
        return _wrap(f'dynamic "{block.name}"', [*align_arguments(arguments), "", *_wrap("content", body)])

    def _write_free_form(self, content: Mapping[str, Any], path: str) -> list[str]:
        """Return the lines of a body with any content. A list of objects is written as blocks."""
        arguments: list[tuple[str, str]] = []
        blocks: list[str] = []
        for key, value in content.items():
            if not NAME.fullmatch(key):
                self.lost_paths.append(join_path(path, key))
            elif _is_list_of_blocks(value):
                for at, item in enumerate(value):
                    blocks += [""] if blocks or arguments else []
                    blocks += _wrap(key, self._write_free_form(item, f"{join_path(path, key)}[{at}]"))
            elif isinstance(value, dict):
                # Without the parentheses, an object becomes a list with one object.
                arguments.append((key, f"({self._format(value)})"))
            elif value is not None:
                arguments.append((key, self._format(value)))
        return [*align_arguments(arguments), *blocks]


_CONVERTED_KINDS: Final = frozenset({
    ArgumentKind.TEXT, ArgumentKind.TEXTS, ArgumentKind.WHOLE, ArgumentKind.BOOL, ArgumentKind.TEXT_MAP,
})  # fmt: skip
"""Arguments that convert their values themselves."""
_CONVERSION: Final = re.compile(
    r"\$\{convert\(((?:var|local)\.[\w.-]+), (?:string|number|bool|list\(string\)|list\(number\)|map\(string\))\)\}"
)


def _drop_conversions(value: Any) -> Any:
    """Return a value without the conversions of variables that arguments of HCL make themselves."""
    if isinstance(value, str):
        match = _CONVERSION.fullmatch(value)
        return f"${{{match[1]}}}" if match is not None else value
    if isinstance(value, dict):
        return {key: _drop_conversions(item) for key, item in value.items()}
    return [_drop_conversions(item) for item in value] if isinstance(value, list) else value


_SERVER_FIELDS: Final = frozenset({
    "ParentID", "Dispatched", "DispatchIdempotencyToken", "NomadTokenID", "Status", "StatusDescription", "Stable", "Version",
    "SubmitTime", "CreateIndex", "ModifyIndex", "JobModifyIndex",
})  # fmt: skip
"""Fields of stored jobs that only servers set. A job file needs none of them."""


def _use_spellings(block: BlockType, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object with the field names of the table. Names in the API match in any case."""
    spellings = {argument.field.lower(): argument.field for argument in block.arguments}
    return {spellings.get(name.lower(), name): value for name, value in content.items()}


def _find_short_form(block: BlockType, value: Any) -> str | list[str] | None:
    """Return the texts of blocks that set nothing but their short argument, or `None` if one of them sets more.

    A text is a template that computes the list.
    """
    if isinstance(value, str):
        return str(_drop_conversions(value))
    if not isinstance(value, list) or not value:
        return None
    texts: list[str] = []
    for item in value:
        written = {name: each for name, each in item.items() if each is not None} if isinstance(item, dict) else {}
        text = written.get(block.short_field)
        if isinstance(item, str):
            texts.append(item)
        elif isinstance(text, str) and len(written) == 1:
            texts.append(text)
        else:
            return None
    return texts


def _is_list_of_blocks(value: Any) -> bool:
    """Return whether a value is a list of objects that blocks can express."""
    return isinstance(value, list) and bool(value) and all(_is_block(item) for item in value)


def _is_block(value: Any) -> bool:
    return isinstance(value, dict) and all(NAME.fullmatch(key) and item is not None for key, item in value.items())


def _indent(lines: Sequence[str]) -> list[str]:
    """Return the lines of a body inside its braces. Empty lines stay, as do lines of heredocs without `-`."""
    indented: list[str] = []
    end = ""
    is_indented = False
    for line in lines:
        if line.startswith(UNCHANGED_LINE):
            indented.append(line)
            continue
        if end:
            is_end = line.strip() == end
            indented.append(f"{INDENTATION}{line}" if is_indented and line else line)
            end = "" if is_end else end
            continue
        indented.append(f"{INDENTATION}{line}" if line else line)
        opening = _HEREDOC_OPENING.match(line)
        end = opening[2] if opening is not None else ""
        is_indented = opening is not None and opening[1] == "-"
    return indented


_HEREDOC_OPENING: Final = re.compile(r"\s*[\w-]+\s*= <<(-?)([A-Z_]+)$")


def _wrap(header: str, body: Sequence[str]) -> list[str]:
    return [f"{header} {{", *_indent(body), "}"] if body else [f"{header} {{}}"]


def align_arguments(arguments: Sequence[tuple[str, str]]) -> list[str]:
    """Return the lines of arguments, with the `=` of neighbours of one line below each other."""
    lines: list[str] = []
    width = 0
    for at, (name, value) in enumerate(arguments):
        if "\n" in value:
            lines += f"{name} = {value}".split("\n")
            width = 0
            continue
        if not width:
            end = next((n for n in range(at, len(arguments)) if "\n" in arguments[n][1]), len(arguments))
            width = max(len(each) for each, _ in arguments[at:end])
        lines.append(f"{name:<{width}} = {value}")
    return lines


def format_short_duration(nanoseconds: int) -> str:
    """Return a duration as users write it: `1h`, where the API has `1h0m0s`."""
    text = format_duration(nanoseconds)
    for unit in ("s", "m"):
        if re.search(rf"[hm]0{unit}$", text):
            text = text[:-2]
    return text


def format_label(text: str) -> str:
    """Return a label in quotes."""
    return f'"{escape_template(escape_quoted(text), keeps_references=False)}"'


def format_expression(value: Any, *, is_inside: bool = False, markers: Markers = Markers.KEEP_REFERENCES) -> str:
    """Return a value of JSON as an expression whose value it is. A text of several lines is a heredoc.

    `markers` says what `${...}` in texts means. `is_inside`: inside a list or an object.
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return json.dumps(value)
        case str():
            bare = _find_bare_expression(value) if markers is Markers.KEEP_ALL else ""
            return bare or _format_text(value, allows_heredoc=not is_inside, markers=markers)
        case list():
            items = [format_expression(item, is_inside=True, markers=markers) for item in value]
            line = f"[{', '.join(items)}]"
            if len(line) <= MAX_LINE_CHARS and "\n" not in line:
                return line
            return "[\n" + "".join(f"{_shift(item)},\n" for item in items) + "]"
        case dict():
            if not value:
                return "{}"
            keys = [
                key if NAME.fullmatch(key) and key not in _KEYWORDS else _format_text(key, markers=markers)
                for key in value
            ]
            values = [format_expression(item, is_inside=True, markers=markers) for item in value.values()]
            line = "{ " + ", ".join(f"{key} = {item}" for key, item in zip(keys, values, strict=True)) + " }"
            if len(line) <= MAX_LINE_CHARS // 2 and "\n" not in line:
                return line
            lines = align_arguments(list(zip(keys, values, strict=True)))
            return "{\n" + "".join(f"{_shift(item)}\n" for item in lines) + "}"
    raise TypeError(f"JSON has no {type(value).__name__}")


def _shift(text: str) -> str:
    return "\n".join(_indent(text.split("\n")))


def _format_text(text: str, *, allows_heredoc: bool = False, markers: Markers = Markers.KEEP_REFERENCES) -> str:
    is_long = text.count("\n") >= MIN_HEREDOC_LINES - 1 and text.endswith("\n") and len(text) > 1
    if allows_heredoc and is_long and UNCHANGED_LINE not in text:
        heredoc = _format_heredoc(text, markers)
        if heredoc is not None:
            return heredoc
    quoted = f'"{escape_quoted(text)}"'
    if MARKERS.search(text) is None:
        return quoted
    if markers is Markers.KEEP_ALL:
        return _keep_lines(quote_template(text))
    if markers is Markers.KEEP_REFERENCES and _is_right(quoted, text):
        return quoted
    return f'"{escape_template(escape_quoted(text), keeps_references=False)}"'


def _find_bare_expression(text: str) -> str:
    """Return the expression of a text that is one interpolation, or an empty text. References for nodes stay in quotes."""
    inner = find_interpolation(text)
    if not inner or "\n" in inner or _NODE_REFERENCE.fullmatch(inner) is not None:
        return ""
    # Without the parentheses, an object becomes a list with one object.
    return f"({inner})" if inner.startswith("{") else inner


def _format_heredoc(text: str, markers: Markers) -> str | None:
    """Return a text of several lines as a heredoc, or `None` if it cannot be one."""
    lines = text.split("\n")
    name = next((name for name in HEREDOC_NAMES if all(line.strip() != name for line in lines)), None)
    if name is None:
        return None
    escaped = escape_template(text, keeps_references=False)
    if markers is Markers.KEEP_ALL:
        # Strip markers mean something else in a heredoc.
        return _indent_heredoc(text, name) if "~}" not in text and "{~" not in text else None
    for body in (text, escaped) if markers is Markers.KEEP_REFERENCES else (escaped,):
        for heredoc in (_indent_heredoc(body, name), f"<<{name}\n{body}{name}"):
            if _is_right(heredoc, text):
                return heredoc
    return None


def _indent_heredoc(text: str, name: str) -> str:
    """Return a heredoc whose lines are indented as the block is, if its own indentation allows this."""
    lines = text.split("\n")[:-1]
    written = [line for line in lines if line.strip()]
    has_long_code = any(is_code and "\n" in piece for is_code, piece in split_template(text))
    if (
        has_long_code
        or all(line[:1] in " \t" for line in written)
        or any(line != "" for line in lines if not line.strip())
    ):
        return f"<<{name}\n{text}{name}"
    body = "".join(f"{INDENTATION}{line}\n" if line else "\n" for line in lines)
    return f"<<-{name}\n{body}{name}"


def _format_condition(text: str) -> str:
    """Return a condition without `${ }` around it. Line breaks need parentheses."""
    condition = find_interpolation(text.strip()) or text.strip()
    return _keep_lines(f"({condition})") if "\n" in condition else condition


def _keep_lines(expression: str) -> str:
    return expression.replace("\n", f"\n{UNCHANGED_LINE}")


def _is_right(expression: str, text: str) -> bool:
    """Return whether an expression has a text as its value."""
    try:
        node = ExpressionParser(SourceFile("", expression)).parse_whole_source()
        return node.evaluate(Scope(Budget(), {}, FunctionPorts(_NoRandom()))) == text
    except (ParseError, ExpressionError):
        return False
