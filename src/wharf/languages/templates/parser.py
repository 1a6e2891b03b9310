"""Parses templates into syntax trees, by recursive descent.

Reports every error that can be found without rendering: unknown functions, wrong numbers of arguments, undefined
variables, and blocks without an end. After an error, the parser continues with the next action.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, NoReturn

from wharf.languages.suggestions import find_nearest_name
from wharf.languages.templates import tree
from wharf.languages.templates.errors import TemplateError
from wharf.languages.templates.lexer import SourcePiece, TemplateToken, split_pieces

MAX_TEMPLATE_DEPTH: Final = 100
"""How deep blocks, and separately parentheses, may nest: limits the stack."""
_ESCAPE: Final = re.compile(r'\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([abfnrtv\\"\'])|(.?))')
_LETTER_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_NO_CONSUL: Final = "Wharf has no Consul; store the value with `wharf var put`, and read it with variable"
_NO_VAULT: Final = "Wharf has no Vault; store the secret with `wharf var put`, and read it with variable"
_FOREIGN_FUNCTIONS: Final = {
    **dict.fromkeys(
        ("key", "keyExists", "keyExistsGet", "keyOrDefault", "ls", "safeLs", "tree", "safeTree"), _NO_CONSUL
    ),
    **dict.fromkeys(("secret", "secrets", "pkiCert"), _NO_VAULT),
    **dict.fromkeys(
        ("node", "nodes", "datacenters", "connect", "caRoots", "caLeaf", "partitions", "peerings"),
        "Wharf has no Consul, which provides it in Nomad",
    ),
}
"""Functions of Nomad's templates that need Consul or Vault, with what to write instead."""
_KEYWORDS: Final = ("block", "break", "continue", "define", "else", "end", "if", "range", "template", "with")
_CONSTANTS: Final = {"true": True, "false": False, "nil": None}


class Arity(NamedTuple):
    """How many arguments a function takes. A maximum of `None` means any number."""

    min_arguments: int
    max_arguments: int | None


class _End(NamedTuple):
    """The action that ends a body: `end`, or `else` with the rest of the action."""

    word: str
    piece: SourcePiece


def parse_template(
    source: str, functions: Mapping[str, Arity], left: str = "{{", right: str = "}}"
) -> tree.TemplateTree:
    """Return the tree of a template. Raises `TemplateError` for the first error.

    `left` and `right` are the delimiters of actions; `functions` are those that the template may call.
    """
    parser = _TemplateParser(source, functions, left, right, max_errors=1)
    template = parser.parse_tree()
    if parser.errors:
        raise parser.errors[0]
    return template


def find_template_errors(
    source: str, functions: Mapping[str, Arity], left: str = "{{", right: str = "}}", *, max_errors: int
) -> list[TemplateError]:
    """Return the first errors of a template, in the order of the text."""
    parser = _TemplateParser(source, functions, left, right, max_errors=max_errors)
    parser.parse_tree()
    return sorted(parser.errors, key=lambda error: error.offset)


class _EndOfErrors(Exception):
    """No further errors are searched: the highest number was found, or one after which the blocks of the text are unknown."""


class _TemplateParser:
    """Parses the blocks of one template, and collects its errors.

    `variables` are the names of variables that are defined where a block begins.
    """

    def __init__(self, source: str, functions: Mapping[str, Arity], left: str, right: str, *, max_errors: int) -> None:
        self.errors: list[TemplateError] = []
        self._max_errors = max_errors
        self._end_action = f"{left} end {right}"
        self._source = source
        self._functions = functions
        self._pieces: list[SourcePiece] = list(split_pieces(source, left, right))
        self._next_piece = 0
        self._named_blocks: dict[str, tree.NodeList] = {}
        self._inclusions: list[tuple[str, int]] = []
        self._range_depth = 0
        self._has_broken_definitions = False
        self._depth = -1  # The template itself is parsed as a block at depth 0.

    def parse_tree(self) -> tree.TemplateTree:
        """Return the tree of the whole template. It is complete only if there are no errors."""
        body: tree.NodeList = ()
        with suppress(_EndOfErrors):
            body, _ = self._parse_block(None, {"$"})
            for name, offset in self._inclusions:
                if name not in self._named_blocks and not self._has_broken_definitions:
                    self._add_error(f'no template is named "{name}"', offset, _suggest_name(name, self._named_blocks))
        return tree.TemplateTree(body, self._named_blocks)

    # -- errors

    def _add_error(self, problem: str, offset: int, fix: str = "") -> None:
        """Add an error. Raises `_EndOfErrors` if it is the last one that is reported."""
        self._record(TemplateError(problem, self._source, offset, fix))

    def _record(self, error: TemplateError) -> None:
        self.errors.append(error)
        if len(self.errors) >= self._max_errors:
            raise _EndOfErrors

    @contextmanager
    def _recovering(self, tokens: "_Tokens") -> Iterator[None]:
        """In the block, add the error of an action to the list. The rest of the action is skipped.

        The error of an action that could not be read is in the list already, so its others are consequences.
        """
        try:
            yield
        except TemplateError as error:
            if not tokens.is_unreadable:
                self._record(error)

    # -- blocks

    def _parse_block(
        self, opening_token: TemplateToken | None, variables: Collection[str]
    ) -> tuple[tree.NodeList, _End | None]:
        """Parse nodes up to the `end` or `else` of a block. Return them, and the action that ended the block.

        `opening_token` is the word that opened the block. It is `None` for the template itself, which no action ends.
        """
        self._depth += 1
        if self._depth > MAX_TEMPLATE_DEPTH and opening_token:
            self._add_error(f"blocks are nested more than {MAX_TEMPLATE_DEPTH} deep", opening_token.offset)
            raise _EndOfErrors
        defined_variables = set(variables)
        nodes: list[tree.TemplateNode] = []
        while self._next_piece < len(self._pieces):
            piece = self._pieces[self._next_piece]
            self._next_piece += 1
            if piece.tokens is None:
                nodes.append(tree.TextNode(piece.text))
                continue
            if piece.error is not None:
                self._record(piece.error)
            tokens = self._tokens(piece, defined_variables)
            word = tokens.peek_word()
            if word in ("end", "else"):
                if opening_token is None:
                    self._add_error(
                        f"{word} without an open block", piece.offset, "write if, range or with before it, or delete it"
                    )
                    continue
                self._depth -= 1
                return tuple(nodes), _End(word, piece)
            with self._recovering(tokens):
                node = self._parse_node(word, tokens, defined_variables)
                if node is not None:
                    nodes.append(node)
        if opening_token is not None:
            self._add_error(
                f"this {opening_token.text} block has no end",
                opening_token.offset,
                f"write {self._end_action} after it",
            )
        self._depth -= 1
        return tuple(nodes), None

    def _parse_node(self, word: str, tokens: "_Tokens", defined_variables: set[str]) -> tree.TemplateNode | None:
        """Parse an action that starts with `word`, with its blocks; return `None` for `define`, which makes no node."""
        match word:
            case "if" | "with":
                return self._parse_conditional(tokens, defined_variables)
            case "range":
                return self._parse_range(tokens, defined_variables)
            case "define" | "block":
                return self._parse_definition(tokens)
            case "template":
                return self._parse_include(tokens)
            case "break" | "continue":
                token = tokens.take_token()
                if not self._range_depth:
                    raise TemplateError(f"{word} outside of range", self._source, token.offset)
                tokens.require_end()
                return tree.LoopJump(word == "break", token.offset)
        names, is_new = tokens.take_variables()
        offset = tokens.offset
        defined_variables.update(names)  # Also if its value has an error, of which other errors would be consequences.
        expression = tokens.parse_pipeline()
        tokens.require_end()
        if not names:
            return tree.OutputNode(expression, offset)
        if len(names) > 1:
            raise TemplateError("only range sets two variables at once", self._source, tokens.start_offset)
        return tree.VariableAssignment(names[0], is_new, expression, tokens.start_offset)

    def _parse_conditional(self, tokens: "_Tokens", defined_variables: set[str]) -> tree.Conditional:
        """Parse an `if` or `with` action with its body and its `else`, and return its node."""
        word = tokens.take_token()
        names: tuple[str, ...] = ()
        expression: tree.Expression = tree.Constant(None, word.offset)
        with self._recovering(tokens):
            names, _ = tokens.take_variables()
            if len(names) > 1:
                raise TemplateError("only range sets two variables at once", self._source, word.offset)
            expression = tokens.parse_pipeline()
            tokens.require_end()
        block_variables = {*defined_variables, *names}
        body, end = self._parse_block(word, block_variables)
        otherwise = self._parse_else(word, end, block_variables)
        return tree.Conditional(names, expression, body, otherwise, word.text == "with", word.offset)

    def _parse_else(self, opening_token: TemplateToken, end: _End | None, defined_variables: set[str]) -> tree.NodeList:
        """Parse the body between the `else` and the `end` of a block; return an empty one if there is no `else`."""
        if end is None:
            return ()  # The missing end is an error already.
        tokens = self._tokens(end.piece, defined_variables)
        tokens.take_token()
        if end.word == "else" and tokens.peek_word() in ("if", "with") and opening_token.text != "range":
            # `else if …` is an `if` inside the `else`. Both are closed by one `end`.
            return (self._parse_conditional(tokens, defined_variables),)
        with self._recovering(tokens):
            tokens.require_end()
        if end.word == "end":
            return ()
        body, last_end = self._parse_block(opening_token, defined_variables)
        while last_end is not None and last_end.word == "else":
            self._add_error("this block already has an else", last_end.piece.offset)
            _, last_end = self._parse_block(opening_token, defined_variables)
        return body

    def _tokens(self, piece: SourcePiece, defined_variables: Collection[str]) -> "_Tokens":
        """Return the parser of one action. `defined_variables` are the variables that the action may use."""
        return _Tokens(
            self._source, piece.tokens or (), piece.offset, self._functions, defined_variables, piece.error is not None
        )

    def _parse_range(self, tokens: "_Tokens", defined_variables: set[str]) -> tree.RangeLoop:
        """Parse a `range` action with its body and its `else`, and return its node."""
        word = tokens.take_token()
        names: tuple[str, ...] = ()
        expression: tree.Expression = tree.Constant(None, word.offset)
        with self._recovering(tokens):
            names, _ = tokens.take_variables()
            expression = tokens.parse_pipeline()
            tokens.require_end()
        self._range_depth += 1
        body, end = self._parse_block(word, {*defined_variables, *names})
        self._range_depth -= 1
        return tree.RangeLoop(
            names,
            expression,
            body,
            self._parse_else(word, end, {*defined_variables, *names}),
            word.offset,
        )

    def _parse_definition(self, tokens: "_Tokens") -> tree.TemplateNode | None:
        """Parse `define` or `block`. A `block` is also included where it is defined."""
        word = tokens.take_token()
        name = ""
        expression = None
        with self._recovering(tokens):
            name = tokens.take_quoted_text(f"{word.text} needs a name in quotes")
            expression = tokens.parse_pipeline() if word.text == "block" else None
            tokens.require_end()
        self._has_broken_definitions |= not name
        # A named template sees only its argument, as `$`, and none of the variables around it.
        outer_range_depth, self._range_depth = self._range_depth, 0
        body, end = self._parse_block(word, {"$"})
        self._range_depth = outer_range_depth
        while end is not None and end.word == "else":
            self._add_error(f"{word.text} cannot have an else", word.offset)
            _, end = self._parse_block(word, {"$"})
        if name in self._named_blocks:
            raise TemplateError(f'a template named "{name}" already exists', self._source, word.offset)
        self._named_blocks[name] = body
        return tree.Include(name, expression, word.offset) if word.text == "block" else None

    def _parse_include(self, tokens: "_Tokens") -> tree.Include:
        """Parse `template` with a name and an optional argument."""
        word = tokens.take_token()
        name = tokens.take_quoted_text("template needs a name in quotes")
        expression = None if tokens.is_done else tokens.parse_pipeline()
        tokens.require_end()
        self._inclusions.append((name, word.offset))
        return tree.Include(name, expression, word.offset)


class _Tokens:
    """Parses the tokens of one action.

    Methods that start with `take_` consume tokens; `_position` is the index of the next one.
    """

    def __init__(
        self,
        source: str,
        tokens: tuple[TemplateToken, ...],
        start_offset: int,
        functions: Mapping[str, Arity],
        defined_variables: Collection[str],
        is_unreadable: bool,
    ) -> None:
        self.is_unreadable = is_unreadable
        self._source = source
        self._tokens = tokens
        self._position = 0
        self._functions = functions
        self._defined_variables = set(defined_variables)
        self._depth = 0
        self.start_offset = start_offset

    @property
    def is_done(self) -> bool:
        return self._position >= len(self._tokens)

    @property
    def offset(self) -> int:
        """The offset of the next token in the source. After the last token, it is that of the action."""
        return self.start_offset if self.is_done else self._tokens[self._position].offset

    def peek_word(self) -> str:
        """Return the next token if it is a word, otherwise ""; do not consume it."""
        return "" if self.is_done or self._tokens[self._position].kind != "word" else self._tokens[self._position].text

    def take_token(self) -> TemplateToken:
        self._position += 1
        return self._tokens[self._position - 1]

    def require_end(self) -> None:
        """Raise `TemplateError` if there are tokens left."""
        if not self.is_done:
            self._raise_error(f"unexpected {self._tokens[self._position].text}", self.offset)

    def take_quoted_text(self, reason: str) -> str:
        """Consume a quoted text and return its value. Raises `TemplateError` with this reason if there is none."""
        if self.is_done or self._tokens[self._position].kind not in ("quoted", "raw"):
            self._raise_error(reason, self.offset)
        return self._get_text(self.take_token())

    def take_variables(self) -> tuple[tuple[str, ...], bool]:
        """Consume the variables before `:=` or `=`; return them and whether they are new.

        Without an assignment nothing is consumed, and the tuple is empty.
        """
        kinds = [token.kind for token in self._tokens[self._position : self._position + 4]]
        for count, pattern in ((1, ["variable", "assign"]), (2, ["variable", "mark", "variable", "assign"])):
            if kinds[: len(pattern)] != pattern:
                continue
            taken_tokens = [self.take_token() for _ in pattern]
            is_new = taken_tokens[-1].text == ":="
            variable_tokens = [token for token in taken_tokens if token.kind == "variable"]
            for token in variable_tokens:
                if token.text == "$":
                    self._raise_error("a variable needs a name, such as $name", token.offset)
                if not is_new:
                    self._require_variable(token)
            assert len(variable_tokens) == count
            self._defined_variables.update(token.text for token in variable_tokens if is_new)
            return tuple(token.text for token in variable_tokens), is_new
        return (), True

    def parse_pipeline(self) -> tree.Expression:
        """Parse commands joined by `|`. The value on the left becomes the last argument on the right."""
        self._depth += 1
        if self._depth > MAX_TEMPLATE_DEPTH:
            self._raise_error(f"parentheses are nested more than {MAX_TEMPLATE_DEPTH} deep", self.offset)
        expression = self._parse_command(())
        while not self.is_done and self._tokens[self._position].text == "|":
            bar = self.take_token()
            if self.peek_word() not in self._functions:
                self._raise_error("only a function can follow |", bar.offset if self.is_done else self.offset)
            expression = self._parse_command((expression,))
        self._depth -= 1
        return expression

    def _parse_command(self, piped: tuple[tree.Expression, ...]) -> tree.Expression:
        """Parse a function with its arguments, or an operand. `piped` holds the value on the left of `|`, if any."""
        if self.is_done:
            self._raise_error(
                "expected a field, a variable, a text or a function",
                self.offset,
                'add it, such as .Name, $name, "text" or env "NAME"',
            )
        token = self._tokens[self._position]
        if token.kind != "word" or token.text in _CONSTANTS:
            operand = self._parse_operand()
            if not self.is_done and self._tokens[self._position].text not in ("|", ")"):
                self._raise_error(
                    f"{token.text} is not a function, so {self._tokens[self._position].text} cannot follow it",
                    self.offset,
                )
            return operand
        arity = self._require_function(self.take_token())
        arguments: list[tree.Expression] = []
        while not self.is_done and self._tokens[self._position].text not in ("|", ")"):
            arguments.append(self._parse_operand())
        arguments.extend(piped)
        max_arguments = len(arguments) if arity.max_arguments is None else arity.max_arguments
        if not arity.min_arguments <= len(arguments) <= max_arguments:
            expected_count = (
                f"{arity.min_arguments}"
                if arity.min_arguments == arity.max_arguments
                else f"at least {arity.min_arguments}"
            )
            if arity.max_arguments is not None and arity.min_arguments != arity.max_arguments:
                expected_count = f"{arity.min_arguments} to {arity.max_arguments}"
            self._raise_error(
                f"{token.text} takes {expected_count} argument{'s' * (expected_count != '1')}, got {len(arguments)}",
                token.offset,
            )
        return self._parse_fields(tree.FunctionCall(token.text, tuple(arguments), token.offset))

    def _parse_operand(self) -> tree.Expression:
        """Parse a constant, a field, a variable, a call without arguments, or a pipeline in parentheses."""
        token = self.take_token()
        expression: tree.Expression
        match token.kind:
            case "quoted" | "raw":
                expression = tree.Constant(self._get_text(token), token.offset)
            case "rune":
                expression = tree.Constant(ord(self._unescape(token)), token.offset)
            case "number":
                expression = tree.Constant(self._parse_number(token), token.offset)
            case "field":
                expression = tree.FieldAccess(tree.Dot(token.offset), token.text[1:], token.offset)
            case "dot":
                expression = tree.Dot(token.offset)
            case "variable":
                self._require_variable(token)
                expression = tree.VariableReference(token.text, token.offset)
            case "word" if token.text in _CONSTANTS:
                expression = tree.Constant(_CONSTANTS[token.text], token.offset)
            case "word":
                if self._require_function(token).min_arguments:
                    self._raise_error(f"put parentheses around {token.text} and its arguments", token.offset)
                expression = tree.FunctionCall(token.text, (), token.offset)
            case "mark" if token.text == "(":
                expression = self.parse_pipeline()
                if self.is_done or self._tokens[self._position].text != ")":
                    self._raise_error("this ( has no matching )", token.offset)
                self.take_token()
            case _:
                self._raise_error(f"unexpected {token.text}", token.offset)
        return self._parse_fields(expression)

    def _parse_fields(self, expression: tree.Expression) -> tree.Expression:
        """Parse the fields that directly follow an operand, such as `.b.c` in `a.b.c`."""
        while not self.is_done:
            token = self._tokens[self._position]
            if token.kind != "field" or token.is_after_space:
                break
            self.take_token()
            expression = tree.FieldAccess(expression, token.text[1:], token.offset)
        return expression

    def _require_function(self, token: TemplateToken) -> Arity:
        """Return the arity of the function that a token names. Raises `TemplateError` if it does not exist."""
        arity = self._functions.get(token.text)
        if arity is None:
            fix = (
                _FOREIGN_FUNCTIONS.get(token.text)
                or _suggest_name(token.text, [*self._functions, *_KEYWORDS])
                or "write a dot before a field, and quotes around text; the documentation page Templates lists the functions"
            )
            self._raise_error(f"{token.text} is not a function", token.offset, fix)
        return arity

    def _require_variable(self, token: TemplateToken) -> None:
        """Raise `TemplateError` if the variable is not defined."""
        if token.text not in self._defined_variables and token.text != "$":
            fix = _suggest_name(token.text, [name for name in sorted(self._defined_variables) if name != "$"])
            self._raise_error(f"variable {token.text} is not defined here", token.offset, fix)

    def _get_text(self, token: TemplateToken) -> str:
        return token.text[1:-1] if token.kind == "raw" else self._unescape(token)

    def _unescape(self, token: TemplateToken) -> str:
        """Return the inside of a quoted token with its escapes replaced."""

        def replace_escape(escape: re.Match[str]) -> str:
            """Return the character that an escape stands for."""
            digits = escape[1] or escape[2] or escape[3]
            if digits:
                if int(digits, 16) > 0x10FFFF:
                    self._raise_error(f"{escape[0]} is not a Unicode character", token.offset + 1 + escape.start())
                return chr(int(digits, 16))
            if escape[4]:
                return _LETTER_ESCAPES.get(escape[4], escape[4])
            return self._raise_error(
                f"unknown escape {escape[0]}", token.offset + 1 + escape.start(), "write \\\\ for a backslash"
            )

        return _ESCAPE.sub(replace_escape, token.text[1:-1])

    def _parse_number(self, token: TemplateToken) -> int | float:
        """Convert a number, which may have a base prefix and underscores."""
        plain = token.text.replace("_", "")
        if len(plain) > 100:
            self._raise_error("a number has at most 100 characters", token.offset)
        is_whole = plain.lstrip("+-").lower().startswith(("0x", "0o", "0b")) or plain.lstrip("+-").isdecimal()
        try:
            return int(plain, 0) if is_whole else float(plain)
        except ValueError:
            self._raise_error(f"{token.text} is not a number", token.offset, "write 8 or 0o10")

    def _raise_error(self, problem: str, offset: int, fix: str = "") -> NoReturn:
        raise TemplateError(problem, self._source, offset, fix)


def _suggest_name(name: str, names: Collection[str]) -> str:
    nearest = find_nearest_name(name, names)
    return f"did you mean {nearest}?" if nearest else ""
