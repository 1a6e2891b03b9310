"""Documents: parses a file or its JSON form, and evaluates it by a schema.

The package docstring shows how the parts work together.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from wharf.languages.hcl.bodies import SyntaxArgument, SyntaxBlock, SyntaxBody
from wharf.languages.hcl.body_parser import BodyParser, is_json
from wharf.languages.hcl.budget import Budget, BudgetExceeded
from wharf.languages.hcl.calls import FunctionPorts, FunctionTable
from wharf.languages.hcl.conversions import ConversionError, to_text
from wharf.languages.hcl.diagnostics import (
    NO_NAMES,
    Diagnostic,
    DiagnosticList,
    DocumentErrors,
    ExpressionError,
    FixSource,
    SourceFile,
    SourceRange,
)
from wharf.languages.hcl.functions import FUNCTIONS
from wharf.languages.hcl.json_documents import DYNAMIC, JsonBodyBuilder, JsonDocumentParser, JsonObject, JsonScalar
from wharf.languages.hcl.local_values import collect_local_values, evaluate_local_values
from wharf.languages.hcl.loops import list_entries
from wharf.languages.hcl.nodes import (
    LiteralNode,
    ObjectNode,
    ParenthesizedNode,
    RelocatedNode,
    Scope,
    SyntaxNode,
    TupleNode,
    suggest_name,
)
from wharf.languages.hcl.reader import NAME, ParseError
from wharf.languages.hcl.references import ReferenceNode
from wharf.languages.hcl.schemas import MAP_BODY, BlockSchema, BodySchema, find_owners, list_item_names
from wharf.languages.hcl.values import (
    SEQUENCES,
    HclObject,
    HclTuple,
    Value,
    describe_value,
    has_sensitive_parts,
    measure_value,
)
from wharf.languages.hcl.variables import ValuesDocument, VariableInputs, VariableReader
from wharf.languages.suggestions import find_nearest_name

MAX_FILE_BYTES: Final = 1_000_000
"""The size of a file, equal to that of a stored job source."""
ATTRIBUTE_BYTES: Final = 64
"""What an attribute of a dynamic block counts as, beside its value. Limits the number of attributes."""
BLOCK_BYTES: Final = 256
"""What a dynamic block counts as, beside its attributes. Limits the number of blocks."""
MAX_NOTES: Final = 20
"""The notes about variables of one file."""
MAX_LISTED_OWNERS: Final = 3
"""The blocks that an error lists as right places of an argument."""
TYPO_SIMILARITY: Final = 0.85
"""A name that is this similar to a name of its own block is a typing error, even if it is the name of another block's item."""
_YAML_START: Final = re.compile(
    r"\s*+(?:#[^\n]*\n\s*+)*+(?:---[ \t]*\n\s*+(?:#[^\n]*\n\s*+)*+)?(?P<line>[A-Za-z_][\w-]*+:(?:[ \t][^\n{}]*)?)(?:\r?\n[ \t-]|\r?\n[A-Za-z_][\w-]*+:)"
)
"""The first line of a text in YAML, if the line after it looks like YAML too."""
_VARIABLE_BODY: Final = BodySchema(
    ("type", "default", "description", "sensitive"), {"validation": BlockSchema(MAP_BODY)}
)
DECLARATIONS: Final[Mapping[str, BlockSchema]] = {
    "variable": BlockSchema(_VARIABLE_BODY, ("name",), is_repeatable=True),
    "variables": BlockSchema(MAP_BODY, is_repeatable=True),
    "locals": BlockSchema(MAP_BODY, is_repeatable=True),
}


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """A document whose syntax is right. `tree` is the body of a native document, or the object of a JSON document."""

    source: SourceFile
    tree: SyntaxBody | JsonObject

    @property
    def is_json(self) -> bool:
        return isinstance(self.tree, JsonObject)


@dataclass(slots=True)
class EvaluatedAttribute:
    """An argument with its value. `is_failed` marks one whose value has an error that is already reported."""

    name: str
    value: Value
    node: SyntaxNode
    source: SourceFile
    name_start: int
    name_end: int
    is_failed: bool = False
    is_sensitive: bool = False
    """Whether the whole value comes from sensitive variables. Marks in the value name its sensitive parts."""

    @property
    def name_place(self) -> SourceRange:
        """The place of the name."""
        return SourceRange(self.source, self.name_start, self.name_end)

    @property
    def place(self) -> SourceRange:
        """The place of the value."""
        return SourceRange(self.source, self.node.start, self.node.end)

    @property
    def is_object_literal(self) -> bool:
        """Whether the value is written as an object literal, not as a call or in parentheses."""
        return isinstance(self.node, ObjectNode)

    def get_item_place(self, *path: int | str) -> SourceRange:
        """Return the place of an item inside a list or object literal, or of the whole value if it is no literal."""
        node = self.get_item_node(*path)
        return SourceRange(self.source, node.start, node.end)

    def get_item_node(self, *path: int | str) -> SyntaxNode:
        """Return the expression of an item inside a list or object literal, or of the whole value if it is no literal."""
        node = self.node
        for step in path:
            if isinstance(node, TupleNode) and isinstance(step, int) and step < len(node.items):
                node = node.items[step]
            elif isinstance(node, ObjectNode):
                found = [value for key, value in node.entries if key == step]
                if not found:
                    break
                node = found[-1]
            else:
                break
        return node


@dataclass(slots=True)
class EvaluatedBody:
    """The attributes and blocks of a body, in the order of the text, with dynamic blocks expanded."""

    attributes: dict[str, EvaluatedAttribute] = field(default_factory=dict)
    blocks: "list[EvaluatedBlock]" = field(default_factory=list)
    first_blocks: "dict[str, EvaluatedBlock]" = field(default_factory=dict)
    """The first block of each type."""
    has_sensitive_values: bool = False
    """Whether an attribute or a label in the body or in a block inside it is sensitive, or has sensitive parts."""

    def list_blocks(self, kind: str) -> "list[EvaluatedBlock]":
        """Return the blocks of a type."""
        return [block for block in self.blocks if block.type == kind]


@dataclass(slots=True)
class EvaluatedBlock:
    """A block with its labels and its evaluated body. `place` is its header."""

    type: str
    labels: tuple[str, ...]
    body: EvaluatedBody
    place: SourceRange
    label_places: tuple[SourceRange, ...] = ()
    has_sensitive_labels: bool = False


class RuntimeReference(NamedTuple):
    """A reference that the node replaces: its first name, and its place."""

    root: str
    place: SourceRange


@dataclass(slots=True)
class EvaluatedDocument:
    """The result of an evaluation. The body is complete only if there are no diagnostics.

    A mapper adds its own diagnostics, so that the author sees all errors of the body together.
    """

    body: EvaluatedBody
    variables: Mapping[str, Value]
    diagnostics: DiagnosticList
    runtime_references: Mapping[int, RuntimeReference]
    """The references that stay as text for the node, by offset. A caller may warn of unknown roots."""
    notes: list[str] = field(default_factory=list)
    """Sentences about variables that are sensitive because of their names, with their places."""


def decode_source(data: str | bytes, name: str) -> SourceFile:
    """Return the source of a file without a byte order mark. Raises `DocumentErrors`."""
    diagnostics = DiagnosticList()
    size = (
        len(data)
        if isinstance(data, bytes)
        else len(data)
        if data.isascii()
        else len(data.encode(errors="surrogatepass"))
    )
    if size > MAX_FILE_BYTES:
        diagnostics.add(
            SourceFile(name, "", is_file=False), 0, 0, f"the file has {size:,} bytes, more than {MAX_FILE_BYTES:,}"
        )
        raise DocumentErrors(diagnostics.diagnostics)
    text = data.decode(errors="surrogateescape") if isinstance(data, bytes) else data
    text = text.removeprefix("\ufeff")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        source = SourceFile(name, text.encode(errors="replace").decode())
        diagnostics.add(source, error.start, error.start + 1, "the file is not UTF-8", "save it as UTF-8")
        raise DocumentErrors(diagnostics.diagnostics) from None
    return SourceFile(name, text)


def parse_document(data: str | bytes, name: str = "job.hcl") -> ParsedDocument:
    """Parse a document in the native or the JSON form. Raises `DocumentErrors` with all errors of its syntax."""
    source = decode_source(data, name)
    diagnostics = DiagnosticList()
    if is_json(source.text):
        return ParsedDocument(source, _parse_json(source))
    _refuse_yaml(source, "give it a name that ends with .yaml")
    body = BodyParser(source, diagnostics).parse_document_body()
    diagnostics.raise_if_any()
    return ParsedDocument(source, body)


def _refuse_yaml(source: SourceFile, fix: str) -> None:
    """Raise `DocumentErrors` with a single error if a text is YAML, in which each line would be an error."""
    found = _YAML_START.match(source.text)
    if found is not None:
        raise DocumentErrors([Diagnostic(SourceRange(source, *found.span("line")), "the file is written in YAML", fix)])


def _parse_json(source: SourceFile) -> JsonObject:
    try:
        return JsonDocumentParser(source).parse_document()
    except ParseError as error:
        diagnostics = DiagnosticList()
        related = None
        if error.related is not None:
            related = (SourceRange(source, error.related[0], error.related[1]), error.related[2])
        diagnostics.add(source, error.start, error.end, error.message, error.fix, related=related)
        raise DocumentErrors(diagnostics.diagnostics) from None


def list_declared_kinds(document: ParsedDocument) -> set[str]:
    """Return which kinds of declarations a document has: `variable`, `variables` and `locals`."""
    tree = document.tree
    kinds = (
        [block.type for block in tree.blocks]
        if isinstance(tree, SyntaxBody)
        else [each.key for each in tree.properties]
    )
    return DECLARATIONS.keys() & set(kinds)


def list_declared_names(document: ParsedDocument) -> dict[str, bool]:
    """Return the variables whose declarations say whether they are sensitive, and what they say.

    A value of a wrong type counts as true, so that the message about it shows no secret.
    """
    if isinstance(document.tree, SyntaxBody):
        blocks = [block for block in document.tree.blocks if block.type == "variable" and block.labels]
        return {
            block.labels[0].text: not (isinstance(argument.value, LiteralNode) and argument.value.value is False)
            for block in blocks
            if (argument := block.body.arguments.get("sensitive")) is not None
        }
    return {
        declared.key: not (isinstance(part.value, JsonScalar) and part.value.value is False)
        for entry in document.tree.properties
        if entry.key == "variable" and isinstance(entry.value, JsonObject)
        for declared in entry.value.properties
        if isinstance(declared.value, JsonObject)
        for part in declared.value.properties
        if part.key == "sensitive"
    }


def parse_values(
    data: str | bytes, name: str = "variables", declared_names: Mapping[str, bool] = NO_NAMES
) -> ValuesDocument:
    """Parse a values file in the native or the JSON form. Raises `DocumentErrors` with all errors of its syntax.

    Messages do not show the values of variables that `declared_names` declares as sensitive, or whose names hint at secrets.
    """
    source = decode_source(data, name)
    source.declared_names = declared_names
    diagnostics = DiagnosticList()
    if is_json(source.text):
        body = JsonBodyBuilder(source, diagnostics).build_body([_parse_json(source)], MAP_BODY)
    else:
        _refuse_yaml(source, "write name = value")
        body = BodyParser(source, diagnostics).parse_document_body()
    for block in body.blocks:
        fix = "write name = value"
        if block.type in DECLARATIONS:
            fix = "declarations belong into the job file; here, write name = value"
        diagnostics.add(source, block.start, block.header_end, "a values file has no blocks", fix)
    diagnostics.raise_if_any()
    return ValuesDocument(source, body)


def evaluate_document(
    document: ParsedDocument,
    schema: BodySchema,
    *,
    ports: FunctionPorts,
    inputs: VariableInputs | None = None,
    functions: FunctionTable = FUNCTIONS,
    budget: Budget | None = None,
) -> EvaluatedDocument:
    """Evaluate a document by the schema of its top level, beside variables and local values.

    Raises `DocumentErrors` for JSON that is no document, and after too many steps. All other errors, from declarations to
    the body, are in the diagnostics of the result.
    """
    diagnostics = DiagnosticList()
    source = document.source
    body, root = build_document_body(document, schema, diagnostics)
    scope = Scope(budget or Budget(), functions, ports)
    try:
        opened = OpenedDocument(document, body, scope, inputs or VariableInputs(), diagnostics)
        # The body is evaluated also if a variable or local value has an error, so that the author sees all errors in one run.
        evaluator = BodyEvaluator(source, root, diagnostics, is_json=document.is_json)
        for argument in opened.local_values.values():
            evaluator.record_references(argument, scope)
        try:
            evaluated = evaluator.evaluate_body(opened.main_body, root, scope, None)
        except BudgetExceeded as error:
            error.place = evaluator.place
            raise
        evaluator.check_required_blocks(schema, evaluated)
    except BudgetExceeded as error:
        add_budget_error(diagnostics, error, source)
        raise diagnostics.build_errors() from None
    return EvaluatedDocument(
        evaluated,
        scope.variables,
        diagnostics,
        evaluator.runtime_references,
        notes=_list_sensitivity_notes(opened.reader),
    )


def add_budget_error(diagnostics: DiagnosticList, error: BudgetExceeded, source: SourceFile) -> None:
    """Add the error of an evaluation that takes too much, at the part that was evaluated."""
    place = error.place or SourceRange(source, 0, 0)
    diagnostics.add(place.source, place.start, place.end, error.message, error.fix)


class OpenedDocument:
    """A document whose declarations are read. Its scope has the values of its variables and local values.

    With `allows_missing`, a variable without a value is no error. Raises `BudgetExceeded`.
    """

    def __init__(
        self,
        document: ParsedDocument,
        body: SyntaxBody,
        scope: Scope,
        inputs: VariableInputs,
        diagnostics: DiagnosticList,
        *,
        allows_missing: bool = False,
    ) -> None:
        self.source = source = document.source
        self.reader = VariableReader(source, scope, diagnostics, is_json=document.is_json)
        self.reader.read_declarations(body)
        scope.variables = self.reader.find_values(inputs, allows_missing=allows_missing)
        self.local_values = collect_local_values(body, source, diagnostics)
        evaluate_local_values(self.local_values, source, scope, diagnostics)
        self.main_body = SyntaxBody(body.arguments, [block for block in body.blocks if block.type not in DECLARATIONS])


def build_document_body(
    document: ParsedDocument, schema: BodySchema, diagnostics: DiagnosticList
) -> tuple[SyntaxBody, BodySchema]:
    """Return the body of a document, and the schema of its top level with the blocks of declarations.

    Raises `DocumentErrors` for JSON that is no document.
    """
    root = replace(schema, blocks={**schema.blocks, **DECLARATIONS})
    body = (
        JsonBodyBuilder(document.source, diagnostics).build_body([document.tree], root)
        if isinstance(document.tree, JsonObject)
        else document.tree
    )
    diagnostics.raise_if_any()
    return body, root


class BodyEvaluator:
    """Evaluates bodies, expands dynamic blocks, and reports what the schema does not allow.

    `template_documents` has one that evaluates dynamic blocks only.
    """

    def __init__(self, source: SourceFile, root: BodySchema, diagnostics: DiagnosticList, *, is_json: bool) -> None:
        self._source = source
        self._root = root
        self._diagnostics = diagnostics
        self._is_json = is_json
        self.place = SourceRange(source, 0, 0)
        """The place of the item that is evaluated."""
        self.runtime_references: dict[int, RuntimeReference] = {}

    def _add_error(
        self, start: int, end: int, message: str, fix: FixSource = "", related: tuple[SourceRange, str] | None = None
    ) -> None:
        self._diagnostics.add(self._source, start, end, message, fix, related=related)

    def record_references(self, argument: SyntaxArgument, scope: Scope) -> None:
        """Record the references of an argument that stay as text for the node."""
        for reference in argument.references:
            if reference.root not in ("var", "local") and reference.root not in scope.names:
                place = SourceRange(self._source, reference.start, reference.end)
                self.runtime_references[reference.start] = RuntimeReference(reference.root, place)

    # -- bodies

    def evaluate_body(self, body: SyntaxBody, schema: BodySchema, scope: Scope, owner: str | None) -> EvaluatedBody:
        """Return the evaluated body of a block of type `owner`, or of the top level."""
        result = EvaluatedBody()
        for argument in body.arguments.values():
            if schema.allows_argument(argument.name):
                attribute = result.attributes[argument.name] = self._evaluate_argument(argument, scope)
                if attribute.is_sensitive or has_sensitive_parts(attribute.value):
                    result.has_sensitive_values = True
            else:
                self._report_unknown_argument(argument, schema, owner)
        for block in body.blocks:
            if block.type == DYNAMIC and DYNAMIC not in schema.blocks:
                self._expand_dynamic(block, schema, scope, owner, result)
                continue
            block_schema = schema.blocks.get(block.type)
            if block_schema is None and not schema.is_free_form:
                self._report_unknown_block(block, schema, owner)
                continue
            self._add_block(block, block_schema, scope, result)
        return result

    def _evaluate_argument(self, argument: SyntaxArgument, scope: Scope) -> EvaluatedAttribute:
        """Return an argument with its value, or marked as failed."""
        node = argument.value
        attribute = EvaluatedAttribute(argument.name, None, node, self._source, argument.name_start, argument.name_end)
        if scope.names:
            scope.budget.use_steps(2)
            scope.budget.use_bytes(ATTRIBUTE_BYTES)
        if isinstance(node, LiteralNode):
            attribute.value = node.value
            return attribute
        self.place = SourceRange(self._source, node.start, node.end)
        self.record_references(argument, scope)
        sensitive = scope.sensitive
        sensitive.has_read = False
        try:
            attribute.value = node.evaluate_parts(scope)
        except ExpressionError as error:
            attribute.is_failed = True
            self._diagnostics.add_evaluation_error(self._source, error, is_sensitive=sensitive.has_read)
        else:
            scope.budget.use_result(measure_value(attribute.value))
        attribute.is_sensitive = sensitive.has_read
        return attribute

    def _add_block(
        self,
        block: SyntaxBlock,
        schema: BlockSchema | None,
        scope: Scope,
        result: EvaluatedBody,
        *,
        labels: Sequence[str] | None = None,
        content: SyntaxBody | None = None,
        kind: str | None = None,
        has_sensitive_labels: bool = False,
    ) -> None:
        """Add an evaluated block. A dynamic block passes its computed labels, its content and its type."""
        name = kind or block.type
        place = SourceRange(self._source, block.start, block.header_end)
        if scope.names:
            scope.budget.use_bytes(BLOCK_BYTES)
        if schema is not None:
            if labels is None and len(block.labels) != len(schema.labels):
                self._report_labels(block, schema)
            first = result.first_blocks.get(name) if not schema.is_repeatable else None
            if first is not None:
                fix = "write a file for each" if schema.is_required else "join both into one"
                self._add_error(
                    block.start, block.header_end, f'the block "{name[:80]}" may occur only once', fix,
                    (first.place, "the first is at"),
                )  # fmt: skip
            elif (argument := result.attributes.get(name)) is not None:
                self._add_error(
                    block.start, block.header_end, f'"{name[:80]}" is a block here, and an argument before',
                    "join both into one", (argument.name_place, "the argument is at"),
                )  # fmt: skip
        elif (argument := result.attributes.get(name)) is not None:
            self._add_error(
                block.start, block.header_end, f'"{name[:80]}" is both an argument and a block', "rename one of them",
                (argument.name_place, "the argument is at"),
            )  # fmt: skip
        body_schema = schema.body if schema is not None else BodySchema(is_free_form=True)
        body = self.evaluate_body(content if content is not None else block.body, body_schema, scope, name)
        texts = tuple(labels) if labels is not None else tuple([label.text for label in block.labels])
        places = tuple([SourceRange(self._source, label.start, label.end) for label in block.labels])
        evaluated = EvaluatedBlock(name, texts, body, place, places, has_sensitive_labels)
        result.blocks.append(evaluated)
        if has_sensitive_labels or body.has_sensitive_values:
            result.has_sensitive_values = True
        result.first_blocks.setdefault(name, evaluated)

    def check_required_blocks(self, schema: BodySchema, body: EvaluatedBody) -> None:
        """Report required blocks of the top level that are missing. Other errors are probably the reason, if there are any."""
        if self._diagnostics.diagnostics:
            return
        for name, block in schema.blocks.items():
            if block.is_required and not body.list_blocks(name):
                labels = "".join(f' "{label}"' for label in block.labels)
                self._add_error(0, 0, f"the file has no block {name}", f"write {name}{labels} {{ ... }}")

    # -- dynamic blocks

    def _expand_dynamic(
        self, block: SyntaxBlock, schema: BodySchema, scope: Scope, owner: str | None, result: EvaluatedBody
    ) -> None:
        """Add the blocks that a dynamic block stands for."""
        if schema.is_free_form or owner is None or schema.is_open:
            where = "at the top level" if owner is None else f"inside {owner[:80]}"
            fix = (
                f'write dynamic "{owner[:80]}" around the whole block'
                if owner is not None
                else "write it inside a block"
            )
            self._add_error(block.start, block.header_end, f"dynamic is not allowed {where}", fix)
            return
        if len(block.labels) != 1:
            self._add_error(
                block.start, block.header_end, "dynamic has one label, the type of its blocks", 'write dynamic "TYPE" {'
            )
            return
        label = block.labels[0]
        block_schema = schema.blocks.get(label.text)
        if block_schema is None:
            self._add_error(
                label.start, label.end, f'no block "{label.text[:80]}" is allowed here',
                lambda: suggest_name(label.text, schema.blocks, kind="blocks"),
            )  # fmt: skip
            return
        parts = self._read_dynamic(block, block_schema)
        if parts is None:
            return
        for_each, iterator, labels, content = parts
        self.place = SourceRange(self._source, for_each.start, for_each.end)
        sensitive = scope.sensitive
        sensitive.has_read = False
        try:
            collection = for_each.evaluate_parts(scope)
            entries = list_entries(for_each, collection, scope, "for_each")
        except ExpressionError as error:
            self._diagnostics.add_evaluation_error(self._source, error, is_sensitive=sensitive.has_read)
            return
        is_sensitive = sensitive.has_read
        inner = scope.with_names({})
        for key, value in entries:
            scope.budget.use_steps(10)
            keys = _ITERATOR_KEYS if is_sensitive else _find_sensitive_keys(collection, key)
            inner.names[iterator] = HclObject({"key": key, "value": value}, keys)
            count = len(self._diagnostics.diagnostics)
            sensitive.has_read = False
            texts = self._evaluate_labels(labels, block_schema, inner) if labels is not None else ()
            if texts is not None:
                self._add_block(
                    block, block_schema, inner, result, labels=texts, content=content.body, kind=label.text,
                    has_sensitive_labels=sensitive.has_read,
                )  # fmt: skip
            if len(self._diagnostics.diagnostics) > count:
                return  # Further items would repeat the errors.

    def _read_dynamic(
        self, block: SyntaxBlock, schema: BlockSchema
    ) -> tuple[SyntaxNode, str, SyntaxNode | None, SyntaxBlock] | None:
        """Return collection, iterator, labels and content of a dynamic block, or `None` after an error."""
        kind = block.labels[0].text
        arguments = block.body.arguments
        count = len(self._diagnostics.diagnostics)
        known = ("for_each", "iterator", "labels")
        for argument in arguments.values():
            if argument.name not in known:
                fix = "its arguments are for_each, iterator and labels"
                if argument.name in schema.body.attributes:
                    fix = "arguments of the blocks belong into content { ... }"
                self._add_error(
                    argument.name_start, argument.name_end, f'dynamic has no argument "{argument.name[:80]}"', fix
                )
        contents = [inner for inner in block.body.blocks if inner.type == "content"]
        for inner in block.body.blocks:
            if inner.type != "content":
                self._add_error(
                    inner.start,
                    inner.header_end,
                    f'dynamic has no block "{inner.type[:80]}"',
                    "write it inside content { ... }",
                )
        if "for_each" not in arguments:
            self._add_error(block.start, block.header_end, "dynamic has no for_each", "write for_each = ...")
        if not contents:
            self._add_error(block.start, block.header_end, "dynamic has no content", "write content { ... }")
        for extra in contents[1:]:
            first = SourceRange(self._source, contents[0].start, contents[0].header_end)
            self._add_error(
                extra.start, extra.header_end, 'the block "content" may occur only once', "", (first, "the first is at")
            )
        for inner in contents[:1]:
            if inner.labels:
                self._add_error(inner.start, inner.header_end, "content has no label", "write content {")
        iterator = self._read_iterator(arguments["iterator"]) if "iterator" in arguments else kind
        labels = arguments.get("labels")
        if schema.labels and labels is None:
            self._add_error(
                block.start, block.header_end, f"a {kind[:80]} has a label, so dynamic needs labels",
                f"write labels = [{kind[:80]}.key]",
            )  # fmt: skip
        if not schema.labels and labels is not None:
            self._add_error(labels.name_start, labels.name_end, f"a {kind[:80]} has no label", "delete labels")
        if len(self._diagnostics.diagnostics) > count or iterator is None:
            return None
        return arguments["for_each"].value, iterator, labels.value if labels is not None else None, contents[0]

    def _read_iterator(self, argument: SyntaxArgument) -> str | None:
        """Return the name of an iterator, or `None` after an error. In the JSON form, it is a text."""
        node = argument.value
        if isinstance(node, ReferenceNode) and not node.steps:
            return node.root
        if (
            self._is_json
            and isinstance(node, LiteralNode)
            and isinstance(node.value, str)
            and NAME.fullmatch(node.value) is not None
        ):
            return node.value
        self._add_error(node.start, node.end, "iterator is a name without quotes", "write iterator = item")
        return None

    def _evaluate_labels(self, node: SyntaxNode, schema: BlockSchema, scope: Scope) -> tuple[str, ...] | None:
        """Return the labels of one dynamic block, or `None` after an error."""
        try:
            value = node.evaluate(scope)
        except ExpressionError as error:
            self._diagnostics.add_evaluation_error(self._source, error, is_sensitive=scope.sensitive.has_read)
            return None
        if not isinstance(value, SEQUENCES):
            self._add_error(
                node.start, node.end, f"labels is a list of texts, not {describe_value(value)}", "put the value in [ ]"
            )
            return None
        if len(value.items) != len(schema.labels):
            self._add_error(
                node.start, node.end, f"labels has {len(value.items)} texts, and the block has {len(schema.labels)}"
            )
            return None
        try:
            return tuple([to_text(item) for item in value.items])
        except ConversionError as error:
            self._add_error(node.start, node.end, f"labels: {error.message}", error.fix)
            return None

    # -- what the schema does not allow

    def _report_unknown_argument(self, argument: SyntaxArgument, schema: BodySchema, owner: str | None) -> None:
        name = argument.name
        where = f"in {owner[:80]}" if owner is not None else "at the top level"
        if name in schema.blocks:
            is_object = isinstance(_unwrap(argument.value), ObjectNode)
            self._add_error(
                argument.name_start, argument.name_end, f'"{name[:80]}" is a block, not an argument',
                f"delete the =: write {name[:80]} {{" if is_object
                else f"write {name[:80]} {{ ... }}{schema.blocks[name].example}",
            )  # fmt: skip
            return

        def suggest() -> str:
            keys = [kind for kind in schema.blocks if kind not in DECLARATIONS]
            if self._is_json and owner is None and find_nearest_name(name, keys) is None:
                return (
                    f"the JSON form of HCL starts with the key {', '.join(keys)}; a document in the form of the API "
                    "needs no parsing"
                )
            return self._suggest_place(name, schema, is_block=False)

        self._add_error(
            argument.name_start, argument.name_end, f'no argument "{name[:80]}" is allowed {where}', suggest
        )

    def _report_unknown_block(self, block: SyntaxBlock, schema: BodySchema, owner: str | None) -> None:
        name = block.type
        where = f"in {owner[:80]}" if owner is not None else "at the top level"
        if schema.allows_argument(name):
            self._add_error(
                block.start, block.header_end, f'"{name[:80]}" is an argument, not a block', f"write {name[:80]} = ..."
            )
            return
        message = f'no block "{name[:80]}" is allowed {where}'
        self._add_error(
            block.start, block.header_end, message, lambda: self._suggest_place(name, schema, is_block=True)
        )

    def _suggest_place(self, name: str, schema: BodySchema, *, is_block: bool) -> str:
        """Return where an item is allowed, or the nearest known name. A name that is nearly right here wins."""
        if hint := schema.hints.get(name):
            return hint
        nearest = find_nearest_name(
            name, schema.blocks if is_block else schema.attributes, min_similarity=TYPO_SIMILARITY
        )
        if nearest is not None:
            return f'did you mean "{nearest}"?'
        owners = find_owners(self._root, name, is_block=is_block)
        if owners:
            listed = ", ".join(owners[:MAX_LISTED_OWNERS])
            return f"{name[:80]} belongs to {listed}"
        others = find_owners(self._root, name, is_block=not is_block)
        if others:
            kind = "an argument" if is_block else "a block"
            return f"{name[:80]} is {kind} of {', '.join(others[:MAX_LISTED_OWNERS])}"
        nearest = find_nearest_name(name, [*schema.attributes, *schema.blocks])
        if nearest is not None:
            return f'did you mean "{nearest}"?'
        nearest = find_nearest_name(name, list_item_names(self._root))
        if nearest is None:
            return suggest_name(
                name, schema.blocks if is_block else schema.attributes, kind="blocks" if is_block else "arguments"
            )
        owners = find_owners(self._root, nearest, is_block=is_block) or find_owners(
            self._root, nearest, is_block=not is_block
        )
        return f'did you mean "{nearest}"? It belongs to {", ".join(owners[:MAX_LISTED_OWNERS])}'

    def _report_labels(self, block: SyntaxBlock, schema: BlockSchema) -> None:
        """Report too few or too many labels."""
        name = block.type
        if len(block.labels) > len(schema.labels):
            label = block.labels[len(schema.labels)]
            count = {0: "no label", 1: "one label"}.get(len(schema.labels), f"{len(schema.labels)} labels")
            self._add_error(label.start, label.end, f"a {name[:80]} has {count}", "delete this label")
            return
        labels = "".join(f' "{label}"' for label in schema.labels)
        missing = schema.labels[len(block.labels)]
        self._add_error(
            block.start,
            block.header_end,
            f"a {name[:80]} needs a label with its {missing}",
            f"write {name[:80]}{labels} {{",
        )


_ITERATOR_KEYS: Final = frozenset(("key", "value"))


def _find_sensitive_keys(collection: Value, key: Value) -> frozenset[str] | None:
    """Return the sensitive keys of the iterator of a dynamic block for one entry of its collection."""
    if not isinstance(collection, HclObject | HclTuple) or collection.sensitive_keys is None:
        return None
    return frozenset(("value",)) if key in collection.sensitive_keys else frozenset()


def _list_sensitivity_notes(reader: VariableReader) -> list[str]:
    """Return a note for each variable that is sensitive because of its name only."""
    return [
        f'{each.place}: the variable "{each.name[:80]}" is treated as sensitive because of its name: write sensitive = true, or '
        "sensitive = false to show its value"
        for each in reader.declarations.values()
        if each.declared_sensitivity is None and each.is_sensitive
    ][:MAX_NOTES]


def _unwrap(node: SyntaxNode) -> SyntaxNode:
    """Return the expression inside parentheses or a JSON string."""
    while isinstance(node, ParenthesizedNode | RelocatedNode):
        node = node.inner
    return node
