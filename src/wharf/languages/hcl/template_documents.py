"""Reads a document without the values of its variables: expressions stay, as the texts of templates.

Only dynamic blocks are evaluated, because other languages than HCL have none. `documents` evaluates whole documents.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from wharf.languages.hcl.bodies import SyntaxArgument, SyntaxBlock, SyntaxBody
from wharf.languages.hcl.budget import Budget, BudgetExceeded
from wharf.languages.hcl.calls import FunctionPorts
from wharf.languages.hcl.diagnostics import DiagnosticList, ExpressionError, SourceRange
from wharf.languages.hcl.documents import (
    BodyEvaluator,
    EvaluatedAttribute,
    EvaluatedBody,
    EvaluatedDocument,
    OpenedDocument,
    ParsedDocument,
    add_budget_error,
    build_document_body,
)
from wharf.languages.hcl.functions import FUNCTIONS
from wharf.languages.hcl.nodes import LiteralNode, Scope, SyntaxNode
from wharf.languages.hcl.schemas import BodySchema
from wharf.languages.hcl.template_texts import TemplateWriter, escape_value, to_plain_template
from wharf.languages.hcl.values import ObjectType, TupleType, Value, get_type, to_plain
from wharf.languages.hcl.variables import VariableDeclaration, VariableInputs

VARIABLES: Final = "variables"
LOCALS: Final = "locals"
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Expansion:
    """A dynamic block that was replaced by its blocks, and the values of variables that they were computed from."""

    place: SourceRange
    kind: str
    count: int
    variables: Mapping[str, Any]


@dataclass(slots=True)
class TemplateDocument:
    """A document whose expressions are texts of templates.

    `variables` and `local_values` have the form that they have in YAML. `places` has the places of their parts.
    """

    evaluated: EvaluatedDocument
    variables: dict[str, Any]
    local_values: dict[str, Any]
    places: dict[Path, SourceRange]
    expansions: list[Expansion] = field(default_factory=list)
    kept_ranges: list[tuple[int, int]] = field(default_factory=list)
    """The offsets of expressions that the templates contain as they are written, with their comments."""


def read_template_document(
    document: ParsedDocument, schema: BodySchema, *, ports: FunctionPorts, inputs: VariableInputs, budget: Budget
) -> TemplateDocument:
    """Read a document by the schema of its top level. Values are only needed for dynamic blocks.

    Raises `DocumentErrors` as `evaluate_document` does. Other errors are in the diagnostics of the result.
    """
    diagnostics = DiagnosticList()
    body, root = build_document_body(document, schema, diagnostics)
    scope = Scope(budget, FUNCTIONS, ports)
    try:
        opened = OpenedDocument(document, body, scope, inputs, diagnostics, allows_missing=True)
        evaluator = _TemplateEvaluator(document, root, diagnostics, scope, opened)
        for argument in opened.local_values.values():
            evaluator.record_references(argument, scope)
        result = TemplateDocument(
            EvaluatedDocument(EvaluatedBody(), scope.variables, diagnostics, evaluator.runtime_references), {}, {}, {}
        )
        result.evaluated.body = evaluator.evaluate_body(opened.main_body, root, scope, None)
        evaluator.check_required_blocks(schema, result.evaluated.body)
        if not diagnostics.diagnostics:
            evaluator.add_declarations(result, body)
    except BudgetExceeded as error:
        add_budget_error(diagnostics, error, document.source)
        raise diagnostics.build_errors() from None
    result.expansions = evaluator.expansions
    result.kept_ranges = evaluator.kept_ranges
    return result


def check_template_document(
    document: ParsedDocument, schema: BodySchema, *, ports: FunctionPorts, inputs: VariableInputs
) -> None:
    """Check declarations, the syntax of all expressions, and their names. Values of variables are not needed.

    Raises `DocumentErrors`.
    """
    diagnostics = DiagnosticList()
    body, _ = build_document_body(document, schema, diagnostics)
    scope = Scope(Budget(), FUNCTIONS, ports)
    try:
        opened = OpenedDocument(document, body, scope, inputs, diagnostics, allows_missing=True)
        for argument in opened.main_body.arguments.values():
            report_undeclared_names(argument, scope, opened, diagnostics)
    except BudgetExceeded as error:
        add_budget_error(diagnostics, error, document.source)
    diagnostics.raise_if_any()


def report_undeclared_names(
    argument: SyntaxArgument, scope: Scope, opened: OpenedDocument, diagnostics: DiagnosticList
) -> None:
    """Add an error for each reference to a variable or local value that the document does not declare."""
    for reference in argument.references:
        names = {"var": opened.reader.declarations.keys(), "local": opened.local_values.keys()}.get(reference.root)
        if names is not None and reference.name is not None and reference.name not in names:
            try:
                reference.evaluate(scope)
            except ExpressionError as error:
                diagnostics.add_evaluation_error(opened.source, error)


def _get_type_name(declaration: VariableDeclaration, value: Value) -> str:
    """Return the type of a variable, or an empty text if it is not known. A default sets the type too."""
    kind = declaration.kind
    if kind is None and declaration.default is not None:
        kind = get_type(value)
    items = (
        kind.items
        if isinstance(kind, TupleType)
        else tuple(kind.attributes.values())
        if isinstance(kind, ObjectType)
        else ()
    )
    if items and all(item == items[0] for item in items):
        return f"{'list' if isinstance(kind, TupleType) else 'map'}({items[0]})"
    return str(kind) if kind is not None else ""


class _TemplateEvaluator(BodyEvaluator):
    """Evaluates dynamic blocks, and returns other expressions as templates."""

    def __init__(
        self,
        document: ParsedDocument,
        root: BodySchema,
        diagnostics: DiagnosticList,
        scope: Scope,
        opened: OpenedDocument,
    ) -> None:
        super().__init__(document.source, root, diagnostics, is_json=document.is_json)
        declarations = opened.reader.declarations
        types = {name: _get_type_name(each, scope.variables.get(name)) for name, each in declarations.items()}
        self._writer = TemplateWriter(document.source, types)
        self._declaration_writer = self._writer.build_declaration_writer()
        self._scope = scope
        self._opened = opened
        self._local_values = opened.local_values
        self._used: set[str] = set()
        """The variables that the dynamic blocks, which are being evaluated, are computed from."""
        self.expansions: list[Expansion] = []

    def _evaluate_argument(self, argument: SyntaxArgument, scope: Scope) -> EvaluatedAttribute:
        node = argument.value
        if scope.names and any(reference.root in scope.names for reference in argument.references):
            if self._require_values(argument):
                attribute = super()._evaluate_argument(argument, scope)
                attribute.value = escape_value(attribute.value)
                return attribute
            return EvaluatedAttribute(
                argument.name, None, node, self._source, argument.name_start, argument.name_end, is_failed=True
            )
        self.record_references(argument, scope)
        attribute = EvaluatedAttribute(argument.name, None, node, self._source, argument.name_start, argument.name_end)
        attribute.value = self._build_value(argument, scope)
        return attribute

    def _build_value(self, argument: SyntaxArgument, scope: Scope) -> Value:
        report_undeclared_names(argument, scope, self._opened, self._diagnostics)
        return self._writer.write_argument(argument, partial(self._evaluate, argument, scope))

    def _evaluate(self, argument: SyntaxArgument, scope: Scope) -> Value:
        try:
            return argument.value.evaluate(scope)
        except ExpressionError as error:
            self._diagnostics.add_evaluation_error(self._source, error)
            return None

    def _require_values(self, argument: SyntaxArgument) -> bool:
        """Return whether all variables that an argument is computed from have values. A missing value is an error."""
        is_complete = True
        for name in self._list_variables(argument):
            self._used.add(name)
            node = argument.value
            if name in self._diagnostics.hidden.names:
                is_complete = False
                self._add_error(
                    node.start,
                    node.end,
                    f'this part of a dynamic block comes from the sensitive variable "{name[:80]}", and the result would '
                    "contain its value",
                    "write the blocks without dynamic, or declare sensitive = false",
                )
                continue
            if name in self._scope.variables:
                continue
            is_complete = False
            self._add_error(
                node.start, node.end, f'this part of a dynamic block needs a value of the variable "{name[:80]}"',
                f"set it with --var {name[:80]}=...: the dynamic block is replaced by its blocks",
            )  # fmt: skip
        return is_complete

    def _list_variables(self, argument: SyntaxArgument) -> list[str]:
        """Return the variables that an argument is computed from, also by way of local values."""
        names: dict[str, None] = {}
        seen: set[str] = set()
        waiting = [argument]
        while waiting:
            for reference in waiting.pop().references:
                if reference.root == "var":
                    names |= dict.fromkeys([reference.name] if reference.name is not None else self._scope.variables)
                elif reference.root == "local":
                    found = [reference.name] if reference.name is not None else list(self._local_values)
                    waiting += [self._local_values[name] for name in found if name in self._local_values.keys() - seen]
                    seen.update(found)
        return list(names)

    def _expand_dynamic(
        self, block: SyntaxBlock, schema: BodySchema, scope: Scope, owner: str | None, result: EvaluatedBody
    ) -> None:
        arguments = [block.body.arguments[name] for name in ("for_each", "labels") if name in block.body.arguments]
        outer, self._used = self._used, set()
        incomplete = [argument for argument in arguments if not self._require_values(argument)]
        if not incomplete:
            count = len(result.blocks)
            super()._expand_dynamic(block, schema, scope, owner, result)
            values = {
                name: to_plain(self._scope.variables[name])
                for name in sorted(self._used & self._scope.variables.keys())
            }
            place = SourceRange(self._source, block.start, block.header_end)
            kind = block.labels[0].text if block.labels else ""
            self.expansions.append(Expansion(place, kind, len(result.blocks) - count, values))
        self._used |= outer

    @property
    def kept_ranges(self) -> list[tuple[int, int]]:
        return self._writer.kept_ranges

    # -- declarations

    def add_declarations(self, result: TemplateDocument, body: SyntaxBody) -> None:
        """Add the declarations of variables and local values."""
        for block in body.blocks:
            if block.type == "variable":
                self._add_variable(result, block)
            elif block.type == VARIABLES:
                for argument in block.body.arguments.values():
                    result.variables[argument.name] = {"default": self._build_default(argument)}
                    self._add_place(result, (VARIABLES, argument.name), argument.name_start, argument.value.end)
            elif block.type == LOCALS:
                self._add_place(result, (LOCALS,), block.start, block.end)
                for argument in block.body.arguments.values():
                    result.local_values[argument.name] = to_plain_template(self._build_value(argument, self._scope))
                    self._add_place(result, (LOCALS, argument.name), argument.name_start, argument.value.end)

    def _add_variable(self, result: TemplateDocument, block: SyntaxBlock) -> None:
        path = (VARIABLES, block.labels[0].text)
        declaration: dict[str, Any] = {}
        result.variables[path[1]] = declaration
        self._add_place(result, path, block.start, block.end)
        for argument in block.body.arguments.values():
            self._add_place(result, (*path, argument.name), argument.name_start, argument.value.end)
            if argument.name == "type":
                declaration["type"] = self._get_expression(argument.value)
            elif argument.name == "default":
                declaration["default"] = self._build_default(argument)
            else:
                evaluate = partial(self._evaluate, argument, self._scope)
                declaration[argument.name] = to_plain_template(
                    self._declaration_writer.write_argument(argument, evaluate)
                )
        rules: list[dict[str, str]] = []
        for inner in block.body.blocks:
            self._add_place(result, (*path, inner.type), inner.start, inner.end)
            rule: dict[str, str] = {}
            for argument in inner.body.arguments.values():
                self._add_place(result, (*path, inner.type, argument.name), argument.name_start, argument.value.end)
                rule[argument.name] = (
                    self._get_expression(argument.value)
                    if argument.name == "condition"
                    else self._declaration_writer.write_text(argument.value)
                )
            rules.append(rule)
        if rules:
            declaration["validation"] = rules[0] if len(rules) == 1 else rules

    def _build_default(self, argument: SyntaxArgument) -> Any:
        """Return the default of a variable. It has no references: a text such as `${a}` is escaped."""
        return to_plain(escape_value(self._evaluate(argument, self._scope), keeps_references=False))

    def _get_expression(self, node: SyntaxNode) -> str:
        """Return the source of an expression. In the JSON form, it is a text."""
        if not self._is_json:
            return self._source.text[node.start : node.end]
        text = node.value if isinstance(node, LiteralNode) else self._writer.write_text(node)
        return str(text)

    def _add_place(self, result: TemplateDocument, path: Path, start: int, end: int) -> None:
        result.places.setdefault(path, SourceRange(self._source, start, end))
