"""Properties of documents: any text is a document or has errors with places in it, and printed values are read again.

`make fuzz` tries many more examples.
"""

import json
import re
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tests.languages.hcl.evaluations import FREE_SCHEMA, PORTS, SCHEMA, evaluate_text, evaluate_value
from wharf.languages.hcl.budget import Budget
from wharf.languages.hcl.diagnostics import DocumentErrors
from wharf.languages.hcl.documents import evaluate_document, parse_document, parse_values
from wharf.languages.hcl.numerals import format_number
from wharf.languages.hcl.schemas import BodySchema
from wharf.languages.hcl.values import Value, normalize_text, to_plain
from wharf.languages.hcl.variables import VariableInputs

PIECES = (
    "a", "b-c", "é", "var", "var.v", "local.l", "attr.x", "for", "in", "if", "true", "null", "0", "1.5", "1e3", "007", '"', '"x"',
    "${", "%{", "}", "~", "$${", "%%{", "$", "%", "{", "(", ")", "[", "]", "=", "==", "=>", "!", "-", "+", "*", "/", "&&", "||",
    "?", ":", ",", ".", "...", "[*]", ".*", "<<EOF\n", "<<-EOF\n", "EOF\n", "\n", "\r\n", " ", "\t", "#", "//", "/*", "*/", "\\n",
    "\\", "upper(", "try(", "convert(", "range(3)", "if true", "endif", "else", "endfor", "for x in [1]", 'job "x" {\n', "group",
    'variable "v" {\n', "variables {\n", "locals {\n", 'dynamic "port" {\n', "content {\n", "for_each = [1]\n", "labels = []\n",
    "default = 1\n", "type = list(string)\n", "validation {\n", "condition = var.v > 0\n", "\u00a0", "“", "'", "😀", "\x00", "\u2028",
    "e\u0301", "meta {", 'a = "b"\n', "a = 1\n",
)  # fmt: skip

SAMPLE = """variable "image" {
  type    = string
  default = "web:1"
  validation {
    condition     = var.image != ""
    error_message = "Needs an image."
  }
}
variables { n = 2 }
locals {
  ports = { http = 8080, "admin" = 9000 }
  names = [for k, v in local.ports : upper(k) if v > 1]
}
job "shop" {
  datacenters = ["dc1", "dc2"]
  a           = "x-${join(",", local.names)}-${attr.cpu.arch}"
  b           = true ? [1, 2.5, null] : []
  group "web" {
    count = var.n * 2
    network {
      dynamic "port" {
        for_each = local.ports
        labels   = [port.key]
        content { to = port.value }
      }
    }
    task "app" {
      driver = "docker"
      config {
        args = ["-a", ":${NOMAD_PORT_http}"]
        text = <<-EOF
          %{ for n in local.names ~}
          name ${n}
          %{ endfor ~}
          $${HOME}
        EOF
      }
      env = { "a.b" = 1, (var.image) = "x" }
    }
  }
}
"""


JSON_SAMPLE = """{"variable": {"v": {"type": "list(number)", "default": [1], "validation": {"condition": "${length(var.v) > 0}",
"error_message": "x"}}}, "locals": {"l": "${var.v[0]}"}, "job": {"shop": {"datacenters": ["dc1"], "a": "x-${local.l}-${attr.x}",
"group": [{"web": {"count": 2, "network": {"port": {"http": {"to": 80}}, "dynamic": {"port": {"for_each": {"a": 1},
"iterator": "it", "labels": ["${it.key}"], "content": {"to": "${it.value}"}}}}, "task": {"t": {"config": {"a": [1, {"b": null}]}}}}}]}}}
"""


def find_document_errors(read: Callable[[], object]) -> DocumentErrors | None:
    """Return the errors that a function raises, or `None`."""
    try:
        read()
    except DocumentErrors as errors:
        return errors
    return None


def check_document(text: str) -> None:
    """Parse and evaluate a text. Its errors must have places in the text."""

    def read(schema: BodySchema) -> None:
        evaluation = evaluate_document(parse_document(text), schema, ports=PORTS, budget=Budget(20_000, 200_000))
        evaluation.diagnostics.raise_if_any()

    for schema in (SCHEMA, FREE_SCHEMA):
        errors = find_document_errors(partial(read, schema))
        for diagnostic in errors.diagnostics if errors is not None else ():
            place = diagnostic.place
            assert diagnostic.message
            assert 0 <= place.start <= place.end <= len(place.source.text)
            assert 1 <= place.location.line <= text.count("\n") + 1
            assert "\x1b" not in diagnostic.render()


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
@example('"${<<EOF\n')
@example('""=')
@example("a = <<-EOF\n${~ 1 ~}\nEOF")
@example("a = [for x in")
@example('dynamic "a" {\n}')
@example('{"variable":{"v":[{"type":["string"]}]},"locals":[[]],"job":null}')
def test_any_sequence_of_tokens_is_a_document_or_has_errors(text: str) -> None:
    check_document(text)


@given(st.text())
def test_any_text_is_a_document_or_has_errors(text: str) -> None:
    check_document(text)


@given(
    st.lists(
        st.tuples(st.integers(0, len(SAMPLE)), st.integers(0, 30), st.sampled_from(("", *PIECES))),
        min_size=1,
        max_size=4,
    )
)
def test_a_damaged_document_is_a_document_or_has_errors(changes: list[tuple[int, int, str]]) -> None:
    text = SAMPLE
    for position, count, inserted in changes:
        text = text[:position] + inserted + text[position + count :]

    check_document(text)


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(JSON_SAMPLE)),
            st.integers(0, 20),
            st.sampled_from(
                (
                    "",
                    '"',
                    "{",
                    "}",
                    "[",
                    "]",
                    ",",
                    ":",
                    "null",
                    "1",
                    "true",
                    "[]",
                    "{}",
                    '"x"',
                    "${",
                    "\\",
                    '"dynamic":',
                )
            ),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_a_damaged_json_document_is_a_document_or_has_errors(changes: list[tuple[int, int, str]]) -> None:
    text = JSON_SAMPLE
    for position, count, inserted in changes:
        text = text[:position] + inserted + text[position + count :]

    check_document(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_document_or_have_errors(data: bytes) -> None:
    errors = find_document_errors(lambda: parse_document(data))

    assert errors is None or errors.diagnostics


@given(st.lists(st.sampled_from((*PIECES, "a = 1\n", "b = [1]\n")), max_size=20).map("".join))
def test_any_values_are_accepted_or_have_errors(text: str) -> None:
    errors = find_document_errors(lambda: parse_values(text))

    assert errors is None or errors.diagnostics


@given(st.lists(st.sampled_from(PIECES), max_size=10).map("".join))
def test_any_text_of_a_flag_is_accepted_or_has_errors(text: str) -> None:
    for kind in ("string", "number", "bool", "list(string)", "map(any)"):
        document = parse_document(f'variable "v" {{\n type = {kind}\n}}\njob "x" {{\n a = var.v\n}}\n')
        inputs = VariableInputs(flags=[("v", text)])
        errors = find_document_errors(partial(evaluate_document, document, SCHEMA, ports=PORTS, inputs=inputs))

        for diagnostic in errors.diagnostics if errors is not None else ():
            assert re.match(r"--var v: |job\.hcl:\d+:\d+: ", diagnostic.render())


# -- printed values

_TEXTS = st.text(st.characters(codec="utf-8"), max_size=12).map(normalize_text)
_NUMBERS = st.integers(-(10**30), 10**30) | st.decimals(
    allow_nan=False, allow_infinity=False, places=6, min_value=-(10**12), max_value=10**12
).map(Fraction)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | _NUMBERS | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=12,
)


def print_text(text: str) -> str:
    """Return a text as a quoted string."""
    escaped = json.dumps(text, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")
    # HCL has no escapes for the characters 8 and 12.
    escaped = re.sub(r"\\(.)", lambda match: {"b": "\\u0008", "f": "\\u000c"}.get(match[1], match[0]), escaped)
    return escaped.replace("\u007f", "\\u007f")


def print_value(value: Any) -> str:
    """Return a value as an expression."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Fraction):
        return format_number(value if isinstance(value, int) or value.denominator > 1 else value.numerator)
    if isinstance(value, str):
        return print_text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(print_value, value))}]"
    return f"{{{', '.join(f'{print_text(key)} = {print_value(item)}' for key, item in value.items())}}}"


def to_json_text(value: Any) -> Any:
    """Return a value for JSON, in which strings are templates and fractions are floats."""
    if isinstance(value, str):
        return value.replace("${", "$${").replace("%{", "%%{")
    if isinstance(value, list):
        return [to_json_text(item) for item in value]
    if isinstance(value, dict):
        return {to_json_text(key): to_json_text(item) for key, item in value.items()}
    return float(value) if isinstance(value, Fraction) else value


def simplify(value: Any) -> Any:
    """Return a value with floats for fractions, as `to_plain` gives it."""
    if isinstance(value, list):
        return [simplify(item) for item in value]
    if isinstance(value, dict):
        return {key: simplify(item) for key, item in value.items()}
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else float(value)
    if isinstance(value, int) and not isinstance(value, bool) and not -(1 << 63) <= value < 1 << 63:
        return float(value)
    return value


def is_without_runs(value: Any) -> bool:
    """Return whether no text has a run of signs before a brace: doubling the sign would not be its only escape."""
    return re.search(r"[$%][$%]+\{", json.dumps(value, default=str, ensure_ascii=False)) is None


@given(_VALUES.filter(is_without_runs))
@example("\\b")
@example("\b\f\x7f")
def test_a_printed_value_is_read_again(value: Any) -> None:
    assert simplify(value) == to_plain(evaluate_value(print_value(value)))


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_][a-z0-9_\-]{0,8}", fullmatch=True), _VALUES.filter(is_without_runs), max_size=4
    )
)
def test_the_json_form_has_the_same_values(arguments: dict[str, Any]) -> None:
    for name in ("variable", "variables", "locals", "dynamic"):
        arguments.pop(name, None)
    native = "".join(f"{name} = {print_value(value)}\n" for name, value in arguments.items())
    as_json = json.dumps({name: to_json_text(value) for name, value in arguments.items()})

    def read(text: str) -> dict[str, Any]:
        attributes = evaluate_text(text, FREE_SCHEMA).body.attributes
        return {name: simplify(to_plain(attribute.value)) for name, attribute in attributes.items()}

    assert read(native) == read(as_json)


@given(_VALUES)
@example({"<<": None, "~": {"yes": "no"}})
def test_encoded_values_are_decoded_again(value: Any) -> None:
    node: Value = evaluate_value(print_value(value)) if is_without_runs(value) else None

    for encode, decode in (("jsonencode", "jsondecode"), ("yamlencode", "yamldecode")):
        decoded = evaluate_value(f"{decode}({encode}(var.v))", v=node)
        assert to_plain(node) == to_plain(decoded)


@given(
    st.lists(
        st.sampled_from(("1", "2", "0.5", "1 / 3", "x", "+", "-", "*", "/", "%", "<", "==", "&&", "?", ":", "(", ")")),
        max_size=20,
    )
)
def test_an_expression_has_a_value_or_errors(pieces: list[str]) -> None:
    check_document(f"a = {' '.join(pieces)}\n")
