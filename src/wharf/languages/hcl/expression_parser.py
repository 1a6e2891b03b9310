"""Parses expressions by recursive descent. Operators are grouped without recursion: a long chain uses no stack."""

import re
from typing import Final

from wharf.languages.hcl.call_nodes import SPECIAL_FORMS, CallNode, CanNode, ConvertNode, TryNode
from wharf.languages.hcl.diagnostics import SourceFile
from wharf.languages.hcl.loops import ForObjectNode, ForTupleNode, Loop
from wharf.languages.hcl.nodes import ConditionalNode, LiteralNode, ObjectNode, ParenthesizedNode, SyntaxNode, TupleNode
from wharf.languages.hcl.numerals import NUMBER_PATTERN, Number, NumberError, format_number, parse_literal
from wharf.languages.hcl.operators import Operator, OperatorNode
from wharf.languages.hcl.reader import (
    ANY_BLANK,
    ANY_BLANK_PATTERN,
    ANY_MODE,
    LINE_BLANK,
    LINE_MODE,
    MAX_NESTING,
    NAME,
    NAME_PATTERN,
    OBJECT_MODE,
    MalformedNumberError,
    ParseError,
    make_bare_text_error,
)
from wharf.languages.hcl.references import PostfixNode, ReferenceNode, Step
from wharf.languages.hcl.template_parser import TemplateParser
from wharf.languages.hcl.type_expressions import read_type
from wharf.languages.hcl.values import normalize_text

_OPERAND: Final = re.compile(rf'"([^"\\$%\r\n]*+)"|({NUMBER_PATTERN})|({NAME_PATTERN})')
# Most lists hold literals. One match for an item with its comma is several times faster than its parts.
_SIMPLE_ITEM: Final = re.compile(rf'{ANY_BLANK_PATTERN}(?:("[^"\\$%\r\n]*+")|([0-9]{{1,17}}+)){ANY_BLANK_PATTERN},')
_NUMBER_TAIL: Final = re.compile(r"[\w.][\w.]*+")
_BINARY: Final = re.compile(r"&&|\|\||[=!<>]=|<(?!<)|>|[+*%-]|/(?![/*])|\?")
_UNARY: Final = re.compile(r"[-!](?!=)")
_CALL: Final = re.compile(r"[ \t]*+\(")
_DOTTED: Final = re.compile(rf"\.[ \t]*+(?:({NAME_PATTERN})|(\*)|([0-9]++))")
_FULL_SPLAT: Final = re.compile(r"\[[ \t]*+\*[ \t]*+\]")
_FOR: Final = re.compile(rf"for(?![\w\-]){ANY_BLANK_PATTERN}(?={NAME_PATTERN})(?<!for)")
_OBJECT_KEY: Final = re.compile(rf"({NAME_PATTERN})[ \t]*+[=:](?![=>])")
_PRECEDENCES: Final = {
    "||": 2, "&&": 3, "==": 4, "!=": 4, "<": 5, "<=": 5, ">": 5, ">=": 5, "+": 6, "-": 6, "*": 7, "/": 7, "%": 7,
}  # fmt: skip
_UNARY_PRECEDENCE: Final = 8
_BARE_PATH: Final = re.compile(r"[./~][\w./@:+~-]++")
_FRACTION: Final = re.compile(r"\.(?![./\w])|\.[0-9]++(?![\w./])")
_PROGRAMMING_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+|[1-9][0-9]*(?:_[0-9]+)+")
MAX_SUGGESTED_CHARS: Final = 40
"""A longer text is not repeated in an advice."""
_ARGUMENT_START: Final = re.compile(rf"{NAME_PATTERN}[ \t]*+=(?!=)")
_SIMPLE_TEXT: Final = re.compile(r'"[^"\\$%\r\n]*+"')
_ITEM_STARTS: Final = frozenset('"[{(<0123456789-!')
_LITERALS: Final = {"true": True, "false": False, "null": None}
MAX_EXPRESSION_PARTS: Final = 20_000
"""The operands and operators of one expression without brackets. Limits the time of a document that is one long chain."""
_EXPECTED_VALUE: Final = "a value"


class ExpressionParser(TemplateParser):
    """Parses expressions of one source, and records the references and calls for checks that need no evaluation."""

    def __init__(self, source: SourceFile) -> None:
        super().__init__(source)
        self.references: list[ReferenceNode] = []
        self.calls: list[SyntaxNode] = []
        self._bound_names: dict[str, int] = {}

    def parse_whole_source(self) -> SyntaxNode:
        """Parse a source that is one expression. Raises `ParseError`."""
        node = self.parse_expression(ANY_MODE)
        self.skip_any_blank()
        if self.pos < len(self.text):
            raise self.make_unexpected_error("an operator or the end")
        return node

    def _skip(self, mode: int) -> None:
        blank = ANY_BLANK if mode == ANY_MODE else LINE_BLANK
        self.pos = blank.match(self.text, self.pos).end()  # type: ignore[union-attr]  # it always matches

    # -- operators

    def parse_expression(self, mode: int) -> SyntaxNode:
        """Parse an expression, with a chain of conditionals at its end."""
        pairs: list[tuple[SyntaxNode, SyntaxNode]] = []
        while True:
            node = self._parse_operators(mode)
            if not self.starts_with("?"):
                break
            question = self.pos
            self.enter(question)
            self.pos += 1
            value = self.parse_expression(mode)
            self.depth -= 1
            self._skip_before_operator(mode)
            if not self.starts_with(":"):
                raise self.make_unexpected_error('":" of the conditional', "", (question, question + 1, "? at"))
            self.pos += 1
            pairs.append((node, value))
        if not pairs:
            return node
        return ConditionalNode(pairs, node, pairs[0][0].start, node.end)

    def _skip_before_operator(self, mode: int) -> None:
        """Skip to an operator. In an object, a line end is skipped only if an operator follows."""
        self._skip(mode)
        if mode == OBJECT_MODE and self.text[self.pos : self.pos + 1] in ("\n", "\r", "#", "/"):
            start = self.pos
            self.skip_any_blank()
            if _BINARY.match(self.text, self.pos) is None and not self.starts_with(":"):
                self.pos = start

    def _parse_operators(self, mode: int) -> SyntaxNode:
        """Parse operands and operators. Afterwards, the position is at `?`, or where the expression ended."""
        program: list[SyntaxNode | Operator] = []
        waiting: list[Operator] = []  # Operators whose right operand is not complete.
        places: list[tuple[int, int]] = []  # The places of the operands that are complete.
        while True:
            self._skip(mode if mode != OBJECT_MODE else ANY_MODE if waiting else OBJECT_MODE)
            unary = _UNARY.match(self.text, self.pos)
            if unary is not None:
                waiting.append(Operator(f"unary{unary[0]}", self.pos, unary.end()))
                if len(waiting) > MAX_EXPRESSION_PARTS:
                    raise ParseError(f"more than {MAX_EXPRESSION_PARTS:,} operators", self.pos, unary.end())
                self.pos = unary.end()
                continue
            node = self._parse_operand(mode)
            program.append(node)
            if len(program) > MAX_EXPRESSION_PARTS:
                raise ParseError(
                    f"the expression has more than {MAX_EXPRESSION_PARTS:,} operands and operators",
                    node.start,
                    node.end,
                )
            places.append((node.start, node.end))
            end = self.pos
            self._skip_before_operator(mode)
            match = _BINARY.match(self.text, self.pos)
            if match is None or match[0] == "?":
                if match is None:
                    self.pos = end
                break
            precedence = _PRECEDENCES[match[0]]
            _apply_waiting(program, waiting, places, precedence)
            waiting.append(Operator(match[0], self.pos, match.end(), places[-1]))
            self.pos = match.end()
        if not waiting:
            return node
        _apply_waiting(program, waiting, places, 0)
        if len(program) == 2 and isinstance(node, LiteralNode) and type(node.value) in (int, bool):
            operator = program[1]
            if isinstance(operator, Operator) and (operator.symbol == "-") == (type(node.value) is int):
                value = -node.value if operator.symbol == "-" else not node.value  # type: ignore[operator]
                return LiteralNode(value, places[0][0], places[0][1])
        self.node_count += len(program) >> 1
        return OperatorNode(program, *places[0])

    # -- operands

    def _parse_operand(self, mode: int) -> SyntaxNode:
        """Parse a literal, a name, a call or brackets, with attributes and indexes after it."""
        text = self.text
        start = self.pos
        self.node_count += 1
        self.count_node(start)
        match = _OPERAND.match(text, start)
        node: SyntaxNode
        if match is None:
            # The frequent brackets are parsed from here, because each nested call takes stack.
            character = text[start : start + 1]
            if character == '"':
                node = self.parse_quoted()
            elif character == "[":
                node = self._parse_tuple()
            elif character == "{" and not text.startswith("{{", start):
                node = self._parse_object()
            else:
                node = self._parse_bracketed()
        elif match.lastindex == 1:
            self.pos = match.end()
            node = LiteralNode(normalize_text(match[1]), start, self.pos)
        elif match.lastindex == 2:
            self.pos = match.end()
            node = LiteralNode(self.read_number(start, match.end()), start, self.pos)
        else:
            name = match[3]
            self.pos = match.end()
            call = _CALL.match(text, self.pos)
            if call is not None:
                node = self._parse_call(name, start, call.end())
            elif name in _LITERALS:
                node = LiteralNode(_LITERALS[name], start, self.pos)
            else:
                return self._parse_reference(name, start, mode)
        if text[self.pos : self.pos + 1] in ("", "\n", ",", ")", "}", "]"):
            return node
        steps = self._parse_steps(mode)
        return PostfixNode(node, steps, start, self.pos) if steps else node

    def _parse_bracketed(self) -> SyntaxNode:
        """Parse an operand in parentheses, or a heredoc."""
        start = self.pos
        character = self.text[start : start + 1]
        if character == "(":
            self.enter(start)
            self.pos += 1
            inner = self.parse_expression(ANY_MODE)
            self.skip_any_blank()
            self._expect(")", "(", start)
            self.depth -= 1
            return ParenthesizedNode(inner, start, self.pos)
        if self.starts_with("<<"):
            return self.parse_heredoc()
        fix = ""
        if character == "." and self.text[max(start - 10, 0) : start].rstrip(" \t-").endswith("[["):
            fix = "the file has [[ of another template language: render it first"
        elif _FRACTION.match(self.text, start) is not None:
            fix = "a number has digits before the point: 0.5"
        elif character in ("=", ">"):
            fix = "compare with =="
        bare = _BARE_PATH.match(self.text, start)
        if bare is not None and not fix:
            raise make_bare_text_error(bare[0], start, bare.end())
        raise self.make_unexpected_error(_EXPECTED_VALUE, fix)

    def read_number(self, start: int, end: int) -> Number:
        """Return the number between two offsets. Raises `ParseError`."""
        tail = _NUMBER_TAIL.match(self.text, end)
        if tail is not None and not self.text.startswith("...", end):
            whole = self.text[start : tail.end()]
            fix = f'put it in quotes: "{whole[:40]}"'
            if tail[0].startswith(".") and len(tail[0]) == 1:
                fix = f"a number has digits after the point: {self.text[start:end][:40]}.0"
            elif len(whole) <= MAX_SUGGESTED_CHARS and _PROGRAMMING_NUMBER.fullmatch(whole) is not None:
                fix = f"write {int(whole, 0)}: numbers are decimal and have digits only"
            raise MalformedNumberError(f"{whole[:80]} is not a number", start, tail.end(), fix)
        try:
            return parse_literal(self.text[start:end])
        except NumberError as error:
            raise ParseError(str(error), start, end) from None

    def _expect(self, closing: str, opening: str, start: int, also: str = "") -> None:
        """Skip a closing bracket. Raises `ParseError` that names the opening one."""
        if not self.starts_with(closing):
            raise self.make_unexpected_error(f'{also}"{closing}"', "", (start, start + 1, f'"{opening}" was opened at'))
        self.pos += 1

    def _parse_reference(self, name: str, start: int, mode: int) -> SyntaxNode:
        """Parse the steps after a name."""
        root_end = self.pos
        steps = self._parse_steps(mode)
        node = ReferenceNode(name, root_end, steps, self.text[start : self.pos], start, self.pos)
        if not self._bound_names.get(name):
            self.references.append(node)
        return node

    def _parse_steps(self, mode: int) -> list[Step]:
        """Parse attributes, indexes and splats."""
        steps: list[Step] = []
        text = self.text
        splat_count = 0
        while True:
            before = self.pos
            self._skip(mode)
            start = self.pos
            character = text[start : start + 1]
            if character == "[":
                splat = _FULL_SPLAT.match(text, start)
                if splat is not None:
                    self.pos = splat.end()
                    steps.append(Step(start, self.pos, splat="[*]"))
                    splat_count += 1
                else:
                    self.enter(start)
                    self.pos += 1
                    key = self.parse_expression(ANY_MODE)
                    self.skip_any_blank()
                    self._expect("]", "[", start)
                    self.depth -= 1
                    steps.append(Step(start, self.pos, key=key))
            elif character == "." and not text.startswith("...", start):
                dotted = _DOTTED.match(text, start)
                if dotted is None:
                    self.pos += 1
                    raise self.make_unexpected_error("a name after the point")
                self.pos = dotted.end()
                if dotted[1]:
                    steps.append(Step(start, self.pos, name=dotted[1], is_dotted=True))
                elif dotted[2]:
                    steps.append(Step(start, self.pos, splat=".*"))
                    splat_count += 1
                else:
                    index = LiteralNode(self._read_legacy_index(dotted.start(3)), dotted.start(3), self.pos)
                    steps.append(Step(start, self.pos, key=index, is_dotted=True))
            else:
                self.pos = before
                return steps
            if self.depth + splat_count > MAX_NESTING:
                raise ParseError(f"more than {MAX_NESTING} splats", start, self.pos)

    def _read_legacy_index(self, start: int) -> int:
        if self.pos - start > 18:
            raise ParseError("the index is too large", start, self.pos)
        return int(self.text[start : self.pos])

    # -- calls

    def _parse_call(self, name: str, start: int, arguments_start: int) -> SyntaxNode:
        """Parse the arguments of a call."""
        name_end = self.pos
        opening = arguments_start - 1
        self.enter(opening)
        self.pos = arguments_start
        arguments: list[SyntaxNode] = []
        is_spread = False
        reference_count, call_count = len(self.references), len(self.calls)
        while True:
            self.skip_any_blank()
            if self.starts_with(")"):
                break
            if is_spread:
                raise self.make_unexpected_error('")", because ... ends the arguments')
            if name == "convert" and len(arguments) == 1:
                reference_count, call_count = len(self.references), len(self.calls)
            arguments.append(self.parse_expression(ANY_MODE))
            self.skip_any_blank()
            if self.starts_with("..."):
                is_spread = True
                self.pos += 3
                self.skip_any_blank()
            if self.starts_with(","):
                self.pos += 1
            elif not self.starts_with(")"):
                raise self.make_unexpected_error(
                    '"," or ")"', "", (opening, opening + 1, f"the call of {name[:80]} was opened at")
                )
        self.pos += 1
        self.depth -= 1
        if name in SPECIAL_FORMS:
            if name == "convert":  # The words of a type are no references.
                del self.references[reference_count:], self.calls[call_count:]
            node = self._build_special_form(name, arguments, start, is_spread=is_spread)
        else:
            node = CallNode(name, name_end, arguments, start, self.pos, is_spread=is_spread)
        self.calls.append(node)
        return node

    def _build_special_form(self, name: str, arguments: list[SyntaxNode], start: int, *, is_spread: bool) -> SyntaxNode:
        """Return the node of a function that does not evaluate its arguments first. Raises `ParseError`."""
        end = self.pos
        if is_spread:
            raise ParseError(f"{name} does not take ...", start, end)
        if name == "try":
            if not arguments:
                raise ParseError(
                    "try: argument 1 (expression) is missing", start, end, "write try(expression, default)"
                )
            return TryNode(arguments, start, end)
        needed = 1 if name == "can" else 2
        if len(arguments) != needed:
            usage = "can(expression)" if name == "can" else "convert(value, type)"
            problem = "too many arguments" if len(arguments) > needed else f"argument {len(arguments) + 1} is missing"
            raise ParseError(f"{name}: {problem}", start, end, f"write {usage}")
        if name == "can":
            return CanNode(arguments[0], start, end)
        return ConvertNode(arguments[0], read_type(arguments[1], allows_any=True), start, end)

    # -- lists, objects, for

    def _parse_tuple(self) -> SyntaxNode:
        """Parse a list literal, or a `for` that gives a list."""
        start = self.pos
        self.enter(start)
        self.pos += 1
        self.skip_any_blank()
        head = _FOR.match(self.text, self.pos)
        if head is not None:
            self.pos = head.end()
            return self._parse_for_tuple(start)
        items: list[SyntaxNode] = []
        while True:
            simple = _SIMPLE_ITEM.match(self.text, self.pos)
            if simple is not None:
                self.pos = simple.end()
                is_text = simple.lastindex == 1
                value = normalize_text(simple[1][1:-1]) if is_text else int(simple[2])
                items.append(LiteralNode(value, *simple.span(1 if is_text else 2)))
                self.node_count += 1
                continue
            self.skip_any_blank()
            if self.starts_with("]"):
                break
            items.append(self.parse_expression(ANY_MODE))
            self.skip_any_blank()
            if self.starts_with(","):
                self.pos += 1
            elif not self.starts_with("]"):
                raise self._make_separator_missing_error("list", "]", start)
        self.pos += 1
        self.depth -= 1
        return TupleNode(items, start, self.pos)

    def _make_separator_missing_error(self, kind: str, closing: str, start: int) -> ParseError:
        """Return the error for a list or object whose item is not followed by a comma or the closing bracket."""
        related = (start, start + 1, f"the {kind} was opened at")
        if kind == "list" and _ARGUMENT_START.match(self.text, self.pos) is not None:
            name = NAME.match(self.text, self.pos)
            assert name is not None, "an argument starts with its name"
            return ParseError(
                f'the list has no "{closing}" before {name[0][:80]}', self.pos, name.end(), f"write {closing} after its last item",
                related,
            )  # fmt: skip
        if self.text.startswith("[[", start - 1):  # Probably a mark of another template language.
            return self.make_unexpected_error('"," or "]"', "", related)
        if self.text[self.pos : self.pos + 1] not in _ITEM_STARTS and NAME.match(self.text, self.pos) is None:
            expected = '"," or "]"' if kind == "list" else '"," or a line end or "}"'
            return self.make_unexpected_error(expected, "", related)
        if kind == "list":
            fix = "write a comma between two items, also at the end of a line"
        else:
            fix = "write a comma between two entries, or put each on a line of its own"
        end = self.pos + 1
        for pattern in (_SIMPLE_TEXT, NAME):
            word = pattern.match(self.text, self.pos)
            end = word.end() if word is not None else end
        return ParseError(f"a comma is missing before this item of the {kind}", self.pos, end, fix, related)

    def _parse_object(self) -> SyntaxNode:
        """Parse an object literal, or a `for` that gives an object."""
        start = self.pos
        self.enter(start)
        self.pos += 1
        self.skip_any_blank()
        head = _FOR.match(self.text, self.pos)
        if head is not None:
            self.pos = head.end()
            return self._parse_for_object(start)
        entries: list[tuple[str | SyntaxNode, SyntaxNode]] = []
        while not self.starts_with("}"):
            key = self._parse_object_key(start)
            self.skip_any_blank()
            entries.append((key, self.parse_expression(OBJECT_MODE)))
            value_end = self.pos
            self.skip_any_blank()
            is_separated = "\n" in self.text[value_end : self.pos]
            if self.starts_with(","):
                self.pos += 1
                self.skip_any_blank()
            elif not is_separated and not self.starts_with("}"):
                raise self._make_separator_missing_error("object", "}", start)
        self.pos += 1
        self.depth -= 1
        return ObjectNode(entries, start, self.pos)

    def _parse_object_key(self, object_start: int) -> str | SyntaxNode:
        """Parse a key and the sign after it."""
        text = self.text
        start = self.pos
        simple = _OBJECT_KEY.match(text, start)
        if simple is not None:
            self.pos = simple.end()
            return normalize_text(simple[1])
        key: str | SyntaxNode
        operand = _OPERAND.match(text, start)
        if text.startswith("(", start):
            key = self._parse_bracketed()
        elif operand is not None and operand.lastindex == 3:
            self.pos = operand.end()
            key = normalize_text(operand[3])
            if text[self.pos : self.pos + 1] in (".", "[", "("):
                node = self._parse_operand_at(start)
                raise ParseError(
                    "a key is a name, a text or an expression in parentheses", start, node.end,
                    f"write ({text[start:node.end][:80]}) for its value, or put it in quotes",
                )  # fmt: skip
        elif operand is not None and operand.lastindex == 2:
            self.pos = operand.end()
            number = self.read_number(start, operand.end())
            key = format_number(number)
        elif text.startswith('"', start):
            quoted = self.parse_quoted()
            key = quoted.value if isinstance(quoted, LiteralNode) and isinstance(quoted.value, str) else quoted
        else:
            raise self.make_unexpected_error(
                'a key or "}"', "", (object_start, object_start + 1, "the object was opened at")
            )
        self.skip_line_blank()
        if not (self.starts_with("=") or self.starts_with(":")) or self.starts_with("=="):
            fix = "put expressions in parentheses" if not self.starts_with("{") else 'write "=" before "{"'
            raise self.make_unexpected_error(
                '"=" or ":" after the key', fix, (object_start, object_start + 1, "the object was opened at")
            )
        if self.starts_with("=>"):
            raise ParseError('"=>" is only for { for ... }', self.pos, self.pos + 2, 'write "="')
        self.pos += 1
        return key

    def _parse_operand_at(self, start: int) -> SyntaxNode:
        self.pos = start
        return self._parse_operand(LINE_MODE)

    def parse_loop_head(self) -> tuple[Loop, tuple[str, ...]]:
        """Parse `k, v in collection`, and bind the names. `for` was already skipped."""
        first = self._parse_loop_name()
        self.skip_any_blank()
        names: tuple[str, ...] = (first,)
        if self.starts_with(","):
            self.pos += 1
            names = (first, self._parse_loop_name())
            self.skip_any_blank()
        word = NAME.match(self.text, self.pos)
        if word is None or word[0] != "in":
            raise self.make_unexpected_error('"in" and a collection', "write for v in list, or for k, v in map")
        self.pos = word.end()
        collection = self.parse_expression(ANY_MODE)
        for name in names:
            self._bound_names[name] = self._bound_names.get(name, 0) + 1
        return Loop(names[0] if len(names) == 2 else None, names[-1], collection, self.node_count), names

    def _parse_loop_name(self) -> str:
        self.skip_any_blank()
        name = NAME.match(self.text, self.pos)
        if name is None:
            raise self.make_unexpected_error("a name for the item of the loop")
        self.pos = name.end()
        return name[0]

    def unbind_names(self, names: tuple[str, ...]) -> None:
        for name in names:
            self._bound_names[name] -= 1

    def _parse_for_head(self, start: int) -> tuple[Loop, tuple[str, ...]]:
        loop, names = self.parse_loop_head()
        self.skip_any_blank()
        if not self.starts_with(":"):
            raise self.make_unexpected_error(
                '":" after the collection', "", (start, start + 1, "the for was opened at")
            )
        self.pos += 1
        return loop, names

    def _parse_for_condition(self) -> SyntaxNode | None:
        """Parse `if condition` if it follows."""
        self.skip_any_blank()
        word = NAME.match(self.text, self.pos)
        if word is None or word[0] != "if":
            return None
        self.pos = word.end()
        condition = self.parse_expression(ANY_MODE)
        self.skip_any_blank()
        return condition

    def _parse_for_tuple(self, start: int) -> SyntaxNode:
        loop, names = self._parse_for_head(start)
        value = self.parse_expression(ANY_MODE)
        self.skip_any_blank()
        if self.starts_with("=>"):
            raise ParseError(
                "a for in [ ] gives a list, without keys", self.pos, self.pos + 2, "write { for ... } for an object"
            )
        condition = self._parse_for_condition()
        self._expect("]", "[", start, "if or ")
        return self._finish_for(ForTupleNode(loop, value, condition, start, self.pos), loop, names)

    def _parse_for_object(self, start: int) -> SyntaxNode:
        loop, names = self._parse_for_head(start)
        key = self.parse_expression(ANY_MODE)
        self.skip_any_blank()
        if not self.starts_with("=>"):
            raise self.make_unexpected_error(
                '"=>" and a value', "write [ for ... ] for a list", (start, start + 1, "the for was opened at")
            )
        self.pos += 2
        value = self.parse_expression(ANY_MODE)
        self.skip_any_blank()
        is_grouped = self.starts_with("...")
        self.pos += 3 if is_grouped else 0
        condition = self._parse_for_condition()
        self._expect("}", "{", start, "if or ")
        node = ForObjectNode(loop, key, value, condition, start, self.pos, is_grouped=is_grouped)
        return self._finish_for(node, loop, names)

    def _finish_for(self, node: SyntaxNode, loop: Loop, names: tuple[str, ...]) -> SyntaxNode:
        """Set the cost of an iteration, and end the names."""
        self.set_cost(loop)
        self.unbind_names(names)
        self.depth -= 1
        return node


def _apply_waiting(
    program: list[SyntaxNode | Operator], waiting: list[Operator], places: list[tuple[int, int]], precedence: int
) -> None:
    """Append the waiting operators that bind at least as tightly, now that their right operand is complete."""
    while waiting:
        operator = waiting[-1]
        is_unary = operator.symbol.startswith("unary")
        if (_UNARY_PRECEDENCE if is_unary else _PRECEDENCES[operator.symbol]) < precedence:
            return
        waiting.pop()
        right = places.pop()
        operator.right = right
        if is_unary:
            operator.symbol = operator.symbol[-1]
            places.append((operator.start, right[1]))
        else:
            left = places.pop()
            operator.left = left
            places.append((left[0], right[1]))
        program.append(operator)
