"""Variables: their declarations, the values from outside, and the checks of both."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from wharf.languages.hcl.bodies import SyntaxArgument, SyntaxBlock, SyntaxBody
from wharf.languages.hcl.budget import locate_excess
from wharf.languages.hcl.call_nodes import UNOFFERED_FUNCTIONS, CallNode
from wharf.languages.hcl.conversions import ConversionError, convert_value, to_text, unify_all
from wharf.languages.hcl.diagnostics import (
    DiagnosticList,
    ExpressionError,
    SourceFile,
    SourceRange,
    is_secret_name,
)
from wharf.languages.hcl.expression_parser import ExpressionParser
from wharf.languages.hcl.nodes import (
    LiteralNode,
    ObjectNode,
    Scope,
    SyntaxNode,
    TupleNode,
    evaluate_condition,
    suggest_name,
)
from wharf.languages.hcl.reader import NAME, ParseError
from wharf.languages.hcl.references import ReferenceNode
from wharf.languages.hcl.type_expressions import read_type
from wharf.languages.hcl.values import (
    ANY,
    SEQUENCES,
    HclTuple,
    PrimitiveType,
    TupleType,
    Value,
    ValueType,
    describe_type,
    get_type,
    to_plain,
)
from wharf.languages.suggestions import find_nearest_name

_ARGUMENTS: Final = ("type", "default", "description", "sensitive")
_UNOFFERED_ARGUMENTS: Final = {
    "nullable": "delete it; every variable accepts null",
    "ephemeral": "delete it",
}
MAX_SHOWN_VALUE_CHARS: Final = 80
"""A message shows the start of a longer value."""
_DIGIT_START: Final = re.compile(r"[0-9]")
ENVIRONMENT_PREFIXES: Final = ("WHARF_VAR_", "NOMAD_VAR_")
"""The beginnings of environment variables that hold values, the strongest first."""


@dataclass(frozen=True, slots=True)
class VariableInputs:
    """Values from outside, weakest first: environment, automatic files, values files, flags.

    `environment` maps names such as `WHARF_VAR_image` to texts, and the first of `ENVIRONMENT_PREFIXES` wins.
    `automatic_files` were found beside the job file, and `files` were named by the user; later files replace earlier ones.
    `flags` are the texts of `--var name=value`. If `is_strict`, files and flags may only name declared variables. The
    environment and automatic files may name others, because they serve several job files.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    automatic_files: Sequence["ValuesDocument"] = ()
    files: Sequence["ValuesDocument"] = ()
    flags: Sequence[tuple[str, str]] = ()
    is_strict: bool = False


@dataclass(frozen=True, slots=True)
class ValuesDocument:
    """A parsed values file."""

    source: SourceFile
    body: SyntaxBody


@dataclass(slots=True)
class Validation:
    """A `validation` block of a variable."""

    condition: SyntaxArgument
    message: SyntaxArgument
    place: SourceRange


@dataclass(slots=True)
class VariableDeclaration:
    """A declared variable. `kind` is `None` if it has no type argument."""

    name: str
    place: SourceRange
    kind: ValueType | None = None
    default: SyntaxArgument | None = None
    validations: list[Validation] = field(default_factory=list)
    is_valid: bool = True
    declared_sensitivity: bool | None = None
    """The argument `sensitive`, if the declaration has it."""

    @property
    def is_sensitive(self) -> bool:
        """Whether no output shows the value. Without an argument, the name decides (record 0250)."""
        return is_secret_name(self.name) if self.declared_sensitivity is None else self.declared_sensitivity


@dataclass(slots=True)
class _OutsideValue:
    """A value for a variable: an argument of a values file, or a text with the name of its source."""

    source: SourceFile
    argument: SyntaxArgument | None = None

    @property
    def place(self) -> SourceRange:
        if self.argument is None:
            return SourceRange(self.source, 0, len(self.source.text))
        return SourceRange(self.source, self.argument.value.start, self.argument.value.end)


class VariableReader:
    """Collects the declarations of a document and finds the value of each variable."""

    def __init__(self, source: SourceFile, scope: Scope, diagnostics: DiagnosticList, *, is_json: bool) -> None:
        self._source = source
        self._scope = scope
        self._diagnostics = diagnostics
        self._is_json = is_json
        self.declarations: dict[str, VariableDeclaration] = {}

    # -- declarations

    def read_declarations(self, body: SyntaxBody) -> None:
        """Read all blocks `variable` and `variables`."""
        for block in body.blocks:
            if block.type == "variable":
                self._read_variable(block)
            elif block.type == "variables":
                self._read_short_form(block)
        sensitive = self._scope.sensitive
        sensitive.variables = {name for name, each in self.declarations.items() if each.is_sensitive}
        sensitive.is_needed = bool(sensitive.variables)
        self._diagnostics.hidden.names = sensitive.variables

    def _add_error(
        self, start: int, end: int, message: str, fix: str = "", related: tuple[SourceRange, str] | None = None
    ) -> None:
        self._diagnostics.add(self._source, start, end, message, fix, related=related)

    def _declare(self, name: str, start: int, end: int) -> VariableDeclaration:
        """Add a declaration. A second one of the same name is an error."""
        place = SourceRange(self._source, start, end)
        declaration = VariableDeclaration(name, place)
        first = self.declarations.get(name)
        if first is not None:
            self._add_error(
                start,
                end,
                f'the variable "{name[:80]}" is declared twice',
                "delete one of them",
                (first.place, "the first is at"),
            )
            declaration.is_valid = False
            return declaration
        match = NAME.fullmatch(name)
        if match is None:
            fix = (
                "a name does not start with a digit"
                if _DIGIT_START.match(name)
                else "a name has letters, digits, _ and -"
            )
            self._add_error(start, end, f'"{name[:80]}" is not a name for a variable', fix)
        self.declarations[name] = declaration
        return declaration

    def _read_variable(self, block: SyntaxBlock) -> None:
        """Read a block `variable "name"`."""
        if len(block.labels) != 1:
            self._add_error(
                block.start, block.header_end, "a variable has one label, its name", 'write variable "name" {'
            )
            return
        label = block.labels[0]
        declaration = self._declare(label.text, label.start, label.end)
        for argument in block.body.arguments.values():
            if argument.name not in _ARGUMENTS:
                self._report_unknown_argument(argument)
        for inner in block.body.blocks:
            if inner.type == "validation" and not inner.labels:
                self._read_validation(declaration, inner)
            else:
                is_misspelled = find_nearest_name(inner.type, ("validation",)) is not None
                fix = "write validation {" if is_misspelled or inner.type == "validation" else "delete it"
                if inner.type in _ARGUMENTS:
                    fix = f"write {inner.type} = ..."
                self._add_error(inner.start, inner.header_end, f'a variable has no block "{inner.type[:80]}"', fix)
        arguments = block.body.arguments
        if "type" in arguments:
            self._read_type(declaration, arguments["type"])
        if "sensitive" in arguments:
            self._read_sensitive(declaration, arguments["sensitive"])
        if "description" in arguments:
            self._read_text(arguments["description"], "the description")
        if "default" in arguments:
            self._set_default(declaration, arguments["default"])

    def _report_unknown_argument(self, argument: SyntaxArgument) -> None:
        fix = _UNOFFERED_ARGUMENTS.get(argument.name)
        if fix is None:
            fix = suggest_name(argument.name, _ARGUMENTS, kind="arguments")
            if argument.name == "validation":
                fix = "validation is a block: write validation { without ="
        self._add_error(
            argument.name_start, argument.name_end, f'a variable has no argument "{argument.name[:80]}"', fix
        )

    def _read_short_form(self, block: SyntaxBlock) -> None:
        """Read a block `variables`, whose arguments are names and defaults."""
        if block.labels:
            self._add_error(block.start, block.header_end, "variables has no label", "write variables {")
        for inner in block.body.blocks:
            self._add_error(
                inner.start, inner.header_end, f'variables has no block "{inner.type[:80]}"', "write name = default"
            )
        for argument in block.body.arguments.values():
            declaration = self._declare(argument.name, argument.name_start, argument.name_end)
            self._set_default(declaration, argument)

    def _read_type(self, declaration: VariableDeclaration, argument: SyntaxArgument) -> None:
        """Read the type argument. In the JSON form, it is a text."""
        node = argument.value
        try:
            if self._is_json and isinstance(node, LiteralNode) and isinstance(node.value, str):
                try:
                    node = ExpressionParser(SourceFile(self._source.name, node.value)).parse_whole_source()
                    declaration.kind = read_type(node)
                except ParseError as error:
                    place = argument.value
                    raise ParseError(error.message, place.start, place.end, error.fix) from None
            else:
                declaration.kind = read_type(node)
        except ParseError as error:
            self._add_error(error.start, error.end, error.message, error.fix)
            declaration.is_valid = False

    def _read_text(self, argument: SyntaxArgument, description: str) -> str | None:
        """Return the text of an argument that has no names, or `None` after an error."""
        if self._report_names(argument, description):
            return None
        value = self._evaluate(argument.value, self._source)
        if not isinstance(value, str):
            if value is not None:
                self._add_error(argument.value.start, argument.value.end, f"{description} is a text")
            return None
        return value

    def _read_sensitive(self, declaration: VariableDeclaration, argument: SyntaxArgument) -> None:
        """Read whether the value is hidden in messages. It is a literal, because the file is read before its values."""
        node = argument.value
        value = node.value if isinstance(node, LiteralNode) else None
        if not isinstance(value, bool):
            self._add_error(node.start, node.end, "sensitive is true or false", "write sensitive = true")
        # A wrong value hides too, so that the message about it shows no secret.
        declaration.declared_sensitivity = value is not False

    def _report_names(
        self, argument: SyntaxArgument, description: str, source: SourceFile | None = None, *, is_secret: bool = False
    ) -> bool:
        """Report names and functions in a value that may have none. Return whether there are any.

        The error of a secret value does not show the name, which may be a part of the value.
        """
        nodes: list[SyntaxNode] = [*argument.references, *argument.calls]
        if not nodes:
            return False
        node = min(nodes, key=lambda n: n.start)
        if is_secret:
            message = f"{description} holds neither names nor functions"
            fix = "put a text in quotes"
        elif isinstance(node, ReferenceNode):
            name = node.text.strip()
            if node.root in ("var", "local"):
                message = f"{description} holds no names, but {name[:80]} is one"
                fix = "write the value itself"
            else:
                message = f"{description} holds no names, but {name[:80]} is one"
                fix = (
                    f'put a text in quotes: "{name[:80]}"; for a text that the node replaces, write "$${{{name[:80]}}}"'
                )
        else:
            called = node.name if isinstance(node, CallNode) else "try, can or convert"
            message = f"{description} holds no functions, but {called[:80]} is one"
            fix = "write the value itself; locals may call functions"
            if called in UNOFFERED_FUNCTIONS:
                fix = "write the value itself, or no default, and set the variable with --var NAME=VALUE"
        self._diagnostics.add(source or self._source, node.start, node.end, message, fix, is_secret=is_secret)
        return True

    def _evaluate(self, node: SyntaxNode, source: SourceFile, *, is_secret: bool = False) -> Value:
        """Return the value of an expression without names, or `None` after an error."""
        try:
            return node.evaluate(self._scope)
        except ExpressionError as error:
            self._diagnostics.add_evaluation_error(source, error, is_secret=is_secret)
            return None

    def _set_default(self, declaration: VariableDeclaration, argument: SyntaxArgument) -> None:
        """Set the default. It holds literals and operators only."""
        if self._report_names(argument, "a default"):
            declaration.is_valid = False
            return
        declaration.default = argument

    def _read_validation(self, declaration: VariableDeclaration, block: SyntaxBlock) -> None:
        """Read a block `validation`. Both of its arguments are needed."""
        arguments = block.body.arguments
        for argument in arguments.values():
            if argument.name not in ("condition", "error_message"):
                self._add_error(
                    argument.name_start, argument.name_end, f'a validation has no argument "{argument.name[:80]}"',
                    suggest_name(argument.name, ("condition", "error_message"), kind="arguments"),
                )  # fmt: skip
        for inner in block.body.blocks:
            self._add_error(inner.start, inner.header_end, f'a validation has no block "{inner.type[:80]}"')
        missing = [name for name in ("condition", "error_message") if name not in arguments]
        if missing:
            self._add_error(
                block.start,
                block.header_end,
                f"the validation has no {' and no '.join(missing)}",
                f"write {missing[0]} = ...",
            )
            return
        condition, message = arguments["condition"], arguments["error_message"]
        is_right = self._check_names_of_validation(declaration, condition, must_use=True)
        is_right = self._check_names_of_validation(declaration, message, must_use=False) and is_right
        if isinstance(message.value, LiteralNode) and not (
            isinstance(message.value.value, str) and message.value.value.strip()
        ):
            self._add_error(
                message.value.start,
                message.value.end,
                "the error_message is blank",
                "write what a right value looks like",
            )
            is_right = False
        if isinstance(message.value, ObjectNode | TupleNode):
            self._add_error(message.value.start, message.value.end, "the error_message is a text")
            is_right = False
        if is_right:
            declaration.validations.append(
                Validation(condition, message, SourceRange(self._source, condition.value.start, condition.value.end))
            )

    def _check_names_of_validation(
        self, declaration: VariableDeclaration, argument: SyntaxArgument, *, must_use: bool
    ) -> bool:
        """Report names other than the variable itself. Return whether the argument is right."""
        is_used = False
        for reference in argument.references:
            if reference.root == "var" and reference.name == declaration.name:
                is_used = True
                continue
            self._add_error(
                reference.start,
                reference.end,
                f"a validation may use only var.{declaration.name[:80]}, not {reference.text.strip()[:80]}",
            )
            return False
        if must_use and not is_used:
            value = argument.value
            self._add_error(
                value.start, value.end, f"the condition does not use var.{declaration.name[:80]}",
                "compare the variable, or delete the validation",
            )  # fmt: skip
            return False
        return True

    # -- values

    def find_values(self, inputs: VariableInputs, *, allows_missing: bool = False) -> dict[str, Value]:
        """Return the value of each variable. Variables with errors are added to the names that failed.

        With `allows_missing`, a variable without a value is no error.
        """
        candidates = self._collect_candidates(inputs)
        values: dict[str, Value] = {}
        failed: set[str] = set()
        for name, declaration in self.declarations.items():
            is_missing = allows_missing and declaration.default is None and name not in candidates
            with locate_excess(declaration.place):
                if (
                    is_missing
                    or not declaration.is_valid
                    or not self._find_value(declaration, candidates.get(name), values)
                ):
                    failed.add(f"var.{name}")
        self._scope.failed = frozenset(failed)
        return values

    def _collect_candidates(self, inputs: VariableInputs) -> dict[str, _OutsideValue]:
        """Return the strongest value from outside for each declared variable."""
        candidates: dict[str, _OutsideValue] = {}
        for name in self.declarations:
            for prefix in reversed(ENVIRONMENT_PREFIXES):
                text = inputs.environment.get(f"{prefix}{name}")
                if text is not None:
                    label = f"environment variable {prefix}{name}"
                    candidates[name] = _OutsideValue(self._make_source(name, label, text))
        files = [(file, False) for file in inputs.automatic_files]
        files += [(file, inputs.is_strict) for file in inputs.files]
        for document, is_strict in files:
            for argument in document.body.arguments.values():
                place = SourceRange(document.source, argument.name_start, argument.name_end)
                if self._accept_name(argument.name, place, is_strict=is_strict):
                    candidates[argument.name] = _OutsideValue(document.source, argument)
        for name, text in inputs.flags:
            source = self._make_source(name, f"--var {name[:80]}", text)
            if self._accept_name(name, SourceRange(source, 0, 0), is_strict=inputs.is_strict):
                candidates[name] = _OutsideValue(source)
        return candidates

    def _make_source(self, name: str, label: str, text: str) -> SourceFile:
        """Return the source of the value of one variable."""
        declaration = self.declarations.get(name)
        declared = {name: declaration.is_sensitive} if declaration is not None else {}
        return SourceFile(label, text, is_file=False, declared_names=declared)

    def _accept_name(self, name: str, place: SourceRange, *, is_strict: bool) -> bool:
        """Return whether a variable of this name is declared. In strict mode, an unknown name is an error."""
        if name in self.declarations:
            return True
        if is_strict:
            self._diagnostics.add(
                place.source, place.start, place.end, f'no variable "{name[:80]}" is declared in the file',
                lambda: suggest_name(name, self.declarations, kind="variables"), is_secret=is_secret_name(name),
            )  # fmt: skip
        return False

    def _find_value(
        self,
        declaration: VariableDeclaration,
        candidate: _OutsideValue | None,
        values: dict[str, Value],
    ) -> bool:
        """Add the value of a variable. Return whether it has one without an error."""
        name = declaration.name
        default: Value = None
        is_secret = declaration.is_sensitive
        if declaration.default is not None:
            count = len(self._diagnostics.diagnostics)
            default = self._evaluate(declaration.default.value, self._source, is_secret=is_secret)
            if len(self._diagnostics.diagnostics) > count:
                return False
            node = declaration.default.value
            place = SourceRange(self._source, node.start, node.end)
            converted = self._convert(declaration, default, declaration.kind or ANY, place, "the default")
            if converted is _FAILED:
                return False
            default = converted  # type: ignore[assignment]  # it did not fail
            self._hide(declaration, default)
        if candidate is None:
            if declaration.default is None:
                place = declaration.place
                self._diagnostics.add(
                    place.source, place.start, place.end, f'the variable "{name[:80]}" has no value',
                    f"set it with --var {name[:80]}=..., in a values file, as {ENVIRONMENT_PREFIXES[0]}{name[:80]} in the "
                    "environment, or with a default here",
                )  # fmt: skip
                return False
            assert declaration.default is not None
            node = declaration.default.value
            place = SourceRange(self._source, node.start, node.end)
            return self._validate(declaration, default, place, values)
        value = self._read_candidate(declaration, candidate, default)
        if value is _FAILED:
            return False
        return self._validate(declaration, value, candidate.place, values)  # type: ignore[arg-type]  # it did not fail

    def _read_candidate(self, declaration: VariableDeclaration, candidate: _OutsideValue, default: Value) -> object:
        """Return the converted value from outside, or `_FAILED` after an error."""
        kind = declaration.kind
        if kind is None:
            kind = get_type(default) if declaration.default is not None else ANY
        is_secret = declaration.is_sensitive
        if candidate.argument is None:
            self._hide(declaration, candidate.source.text)
        count = len(self._diagnostics.diagnostics)
        if candidate.argument is not None:
            if self._report_names(candidate.argument, "a value", candidate.source, is_secret=is_secret):
                return _FAILED
            value = self._evaluate(candidate.argument.value, candidate.source, is_secret=is_secret)
        else:
            value = self._read_text_value(kind, candidate.source, is_secret=is_secret)
        if len(self._diagnostics.diagnostics) > count:
            return _FAILED
        if isinstance(kind, TupleType) and declaration.kind is None:
            return self._convert_like_default(declaration, value, kind, candidate.place)
        return self._convert(declaration, value, kind, candidate.place, "the value")

    def _read_text_value(self, kind: ValueType, source: SourceFile, *, is_secret: bool) -> Value:
        """Return the value of a text: the text itself for texts and numbers, otherwise an expression."""
        if isinstance(kind, PrimitiveType) and kind.name != "bool":
            return source.text
        parser = ExpressionParser(source)
        try:
            node = parser.parse_whole_source()
        except ParseError as error:
            self._diagnostics.add(source, error.start, error.end, error.message, error.fix, is_secret=is_secret)
            return None
        argument = SyntaxArgument("", 0, 0, node, parser.references, parser.calls)
        if self._report_names(argument, "a value", source, is_secret=is_secret):
            return None
        return self._evaluate(node, source, is_secret=is_secret)

    def _convert_like_default(
        self, declaration: VariableDeclaration, value: Value, kind: TupleType, place: SourceRange
    ) -> object:
        """Return a list whose items have the common type of the items of the default (record 0230)."""
        item = unify_all(kind.items)
        if value is None or item is None:
            return self._convert(declaration, value, kind, place, "the value")
        if not isinstance(value, SEQUENCES):
            return self._convert(declaration, value, TupleType(()), place, "the value")
        converted = [self._convert(declaration, part, item, place, "an item of the value") for part in value.items]
        return _FAILED if _FAILED in converted else HclTuple(tuple(converted))  # type: ignore[arg-type]

    def _convert(
        self, declaration: VariableDeclaration, value: Value, kind: ValueType, place: SourceRange, description: str
    ) -> object:
        """Return the value converted to a type, or `_FAILED` after an error."""
        try:
            return convert_value(value, kind, self._scope.budget)
        except ConversionError as error:
            related = (declaration.place, "the variable is declared at") if place.source is not self._source else None
            self._diagnostics.add(
                place.source, place.start, place.end,
                f'{description} of variable "{declaration.name[:80]}" is not of type {describe_type(kind)}: {error.message}',
                error.fix, related=related, is_secret=declaration.is_sensitive,
            )  # fmt: skip
            return _FAILED

    # -- validation

    def _validate(
        self, declaration: VariableDeclaration, value: Value, place: SourceRange, values: dict[str, Value]
    ) -> bool:
        """Add the value, and check it by the validations of its variable. Return whether they hold."""
        values[declaration.name] = value
        self._hide(declaration, value)
        if not declaration.validations:
            return True
        scope = Scope(self._scope.budget, self._scope.functions, self._scope.ports, variables={declaration.name: value})
        is_secret = declaration.is_sensitive
        is_right = True
        for validation in declaration.validations:
            try:
                holds = evaluate_condition(validation.condition.value, scope)
                message = to_text(validation.message.value.evaluate(scope)) if not holds else ""
            except ExpressionError as error:
                self._diagnostics.add_evaluation_error(self._source, error, is_secret=is_secret, is_sensitive=is_secret)
                is_right = False
                continue
            except ConversionError as error:
                node = validation.message.value
                self._add_error(node.start, node.end, f"error_message: {error.message}")
                is_right = False
                continue
            if holds:
                continue
            is_right = False
            message = "its value is refused" if is_secret and validation.message.references else message.strip()
            self._diagnostics.add(
                place.source, place.start, place.end,
                f'invalid value{"" if is_secret else f" {_render_value(value)}"} for variable "{declaration.name[:80]}": '
                f"{message[:1_000]}",
                related=(validation.place, "the rule is at"), is_secret=is_secret,
            )  # fmt: skip
        return is_right

    def _hide(self, declaration: VariableDeclaration, value: Value) -> None:
        """Hide the value of a sensitive variable in all texts."""
        if declaration.is_sensitive:
            self._diagnostics.hidden.add(to_plain(value))


def _render_value(value: Value) -> str:
    """Return a value as text for a message, cut if it is long."""
    text = json.dumps(to_plain(value), ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN_VALUE_CHARS else f"{text[:MAX_SHOWN_VALUE_CHARS]}..."


_FAILED: Final = object()
