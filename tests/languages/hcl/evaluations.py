"""Short forms for tests of the evaluation: expressions, bodies and whole documents."""

from collections.abc import Mapping
from typing import Any

from wharf.languages.hcl.budget import Budget
from wharf.languages.hcl.calls import FunctionPorts
from wharf.languages.hcl.diagnostics import DocumentErrors, ExpressionError, SourceFile
from wharf.languages.hcl.documents import (
    EvaluatedBody,
    EvaluatedDocument,
    evaluate_document,
    parse_document,
    parse_values,
)
from wharf.languages.hcl.expression_parser import ExpressionParser
from wharf.languages.hcl.functions import FUNCTIONS
from wharf.languages.hcl.nodes import Scope
from wharf.languages.hcl.reader import ParseError
from wharf.languages.hcl.schemas import FREE_FORM_BODY, MAP_BODY, BlockSchema, BodySchema
from wharf.languages.hcl.values import Value, to_plain
from wharf.languages.hcl.variables import VariableInputs


class CountingBytes:
    """A random port that returns 0, 1, 2 and so on."""

    def draw_bytes(self, count: int) -> bytes:
        return bytes(range(count))


PORTS = FunctionPorts(CountingBytes())

_PORT = BodySchema(("static", "to"))
_NETWORK = BodySchema(("mode",), {"port": BlockSchema(_PORT, ("label",), is_repeatable=True)})
_TASK = BodySchema(
    ("driver", "kill_timeout", "env", "meta"),
    {
        "config": BlockSchema(FREE_FORM_BODY),
        "env": BlockSchema(MAP_BODY),
        "meta": BlockSchema(MAP_BODY),
        "resources": BlockSchema(BodySchema(("cpu", "memory"))),
    },
)
_GROUP = BodySchema(
    ("count",),
    {
        "network": BlockSchema(_NETWORK, is_repeatable=True),
        "task": BlockSchema(_TASK, ("name",), is_repeatable=True),
    },
)
_JOB = BodySchema(
    ("datacenters", "type", "meta", "a", "b", "c"),
    {
        "group": BlockSchema(_GROUP, ("name",), is_repeatable=True),
        "constraint": BlockSchema(BodySchema(("distinct_hosts", "attribute", "value")), is_repeatable=True),
        "meta": BlockSchema(MAP_BODY),
        "update": BlockSchema(BodySchema(("max_parallel",))),
    },
)
SCHEMA = BodySchema((), {"job": BlockSchema(_JOB, ("name",), is_required=True)})
"""A small part of the schema of jobs."""
FREE_SCHEMA = BodySchema(is_free_form=True)
"""A document that may hold anything."""


class Failure(Exception):
    """The errors of an expression. `messages` and `fixes` are in the order of the text; `marked` are their sources."""

    def __init__(self, text: str, errors: list[tuple[str, int, int, str]]) -> None:
        super().__init__(str(errors))
        self.messages = [error[0] for error in errors]
        self.marked = [text[error[1] : error[2]] for error in errors]
        self.fixes = [error[3] for error in errors]


def evaluate_value(
    text: str, *, names: Mapping[str, Value] | None = None, budget: Budget | None = None, **variables: Value
) -> Value:
    """Return the value of an expression. Raises `Failure`."""
    try:
        node = ExpressionParser(SourceFile("test", text)).parse_whole_source()
        return node.evaluate(Scope(budget or Budget(), FUNCTIONS, PORTS, variables, names=dict(names or {})))
    except ParseError as error:
        raise Failure(text, [(error.message, error.start, error.end, error.fix)]) from None
    except ExpressionError as error:
        raise Failure(text, [(e.message, e.start, e.end, e.fix) for e in error.errors]) from None


def evaluate(text: str, *, names: Mapping[str, Value] | None = None, **variables: Value) -> Any:
    """Return the value of an expression as JSON has it. Raises `Failure`."""
    return to_plain(evaluate_value(text, names=names, budget=None, **variables))


def find_failure(text: str, *, names: Mapping[str, Value] | None = None, **variables: Value) -> Failure:
    """Return the errors of an expression."""
    try:
        value = evaluate(text, names=names, **variables)
    except Failure as failure:
        return failure
    raise AssertionError(f"{text} has the value {value!r}")


def evaluate_text(
    text: str, schema: BodySchema = SCHEMA, *, values: str | None = None, **inputs: Any
) -> EvaluatedDocument:
    """Evaluate a document. Raises `DocumentErrors` with all of its errors."""
    document = parse_document(text)
    files = (parse_values(values),) if values is not None else ()
    evaluation = evaluate_document(document, schema, ports=PORTS, inputs=VariableInputs(files=files, **inputs))
    evaluation.diagnostics.raise_if_any()
    return evaluation


def dump_body(body: EvaluatedBody) -> dict[str, Any]:
    """Return a body as plain values: attributes by name, and each block under its type and labels in a list."""
    plain: dict[str, Any] = {name: to_plain(attribute.value) for name, attribute in body.attributes.items()}
    for block in body.blocks:
        plain.setdefault(block.type, []).append((*block.labels, dump_body(block.body)))
    return plain


def read_body(text: str) -> dict[str, Any]:
    """Return a document that may hold anything as plain values."""
    return dump_body(evaluate_text(text, FREE_SCHEMA).body)


def read_job(text: str, **inputs: Any) -> dict[str, Any]:
    """Return the body of the only job of a document as plain values."""
    block = evaluate_text(text, **inputs).body.blocks[0]
    return dump_body(block.body)


def find_errors(text: str, schema: BodySchema = SCHEMA, **inputs: Any) -> str:
    """Return the text of all errors of a document."""
    try:
        evaluate_text(text, schema, **inputs)
    except DocumentErrors as errors:
        return errors.text
    raise AssertionError("the document has no error")


def list_errors(text: str, schema: BodySchema = SCHEMA, **inputs: Any) -> list[str]:
    """Return the first line of each error of a document: its place and message."""
    try:
        evaluate_text(text, schema, **inputs)
    except DocumentErrors as errors:
        return [diagnostic.render().partition("\n")[0] for diagnostic in errors.diagnostics]
    return []
