"""Reads a template into its tree. What can be known to be wrong before it is rendered is told here: names of functions
and how many arguments they take, variables that were never made, blocks without an end."""

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, NoReturn

from wharf.languages.templates import tree
from wharf.languages.templates.errors import TemplateError
from wharf.languages.templates.lexer import SourcePiece, TemplateToken, split_pieces

MAX_TEMPLATE_DEPTH: Final = 100
_ESCAPE: Final = re.compile(r'\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([abfnrtv\\"\'])|(.?))')
_LETTERS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CONSTANTS: Final = {"true": True, "false": False, "nil": None}


class Arity(NamedTuple):
    min_arguments: int
    max_arguments: int | None  # None: as many as one likes.


class _End(NamedTuple):
    """The action that ends a block: `end`, or `else` with what stands after it."""

    word: str
    piece: SourcePiece


def parse_template(
    source: str, functions: Mapping[str, Arity], left: str = "{{", right: str = "}}"
) -> tree.TemplateTree:
    """Raises TemplateError."""
    return _Parser(source, functions, left, right).read()


class _Parser:
    def __init__(self, source: str, functions: Mapping[str, Arity], left: str, right: str) -> None:
        self._source = source
        self._functions = functions
        self._pieces: list[SourcePiece] = list(split_pieces(source, left, right))
        self._next = 0
        self._named: dict[str, tree.NodeList] = {}
        self._included: list[tuple[str, int]] = []
        self._ranges = 0
        self._depth = -1  # The template itself stands in nothing.

    def read(self) -> tree.TemplateTree:
        body, _ = self._block(None, {"$"})
        for name, at in self._included:
            if name not in self._named:
                raise TemplateError(f'no template is named "{name}"{_near(name, self._named)}', self._source, at)
        return tree.TemplateTree(body, self._named)

    # -- blocks

    def _block(self, opened: TemplateToken | None, variables: Collection[str]) -> tuple[tree.NodeList, _End | None]:
        """The nodes until the `end` or `else` of the innermost block; None at the end of the template."""
        self._depth += 1
        if self._depth > MAX_TEMPLATE_DEPTH and opened:
            raise TemplateError(
                f"blocks stand in each other at most {MAX_TEMPLATE_DEPTH} deep", self._source, opened.offset
            )
        known = set(variables)
        nodes: list[tree.TemplateNode] = []
        while self._next < len(self._pieces):
            piece = self._pieces[self._next]
            self._next += 1
            if piece.tokens is None:
                nodes.append(tree.TextNode(piece.text))
                continue
            tokens = self._tokens(piece, known)
            word = tokens.keyword()
            if word in ("end", "else"):
                if opened is None:
                    raise TemplateError(f"this {word} ends nothing", self._source, piece.offset)
                self._depth -= 1
                return tuple(nodes), _End(word, piece)
            node = self._node(word, tokens, known)
            if node is not None:
                nodes.append(node)
        if opened is not None:
            raise TemplateError(f"{opened.text} opens a block here that has no end", self._source, opened.offset)
        self._depth -= 1
        return tuple(nodes), None

    def _node(self, word: str, tokens: "_Tokens", known: set[str]) -> tree.TemplateNode | None:
        match word:
            case "if" | "with":
                return self._branch(tokens, known)
            case "range":
                return self._range(tokens, known)
            case "define" | "block":
                return self._define(tokens)
            case "template":
                return self._include(tokens)
            case "break" | "continue":
                token = tokens.take()
                if not self._ranges:
                    raise TemplateError(f"{word} stands in no range", self._source, token.offset)
                tokens.finish()
                return tree.LoopJump(word == "break", token.offset)
        names, is_new = tokens.names()
        at = tokens.at
        expression = tokens.pipeline()
        tokens.finish()
        if not names:
            return tree.OutputNode(expression, at)
        if len(names) > 1:
            raise TemplateError("only range sets two variables at once", self._source, tokens.begin)
        known.add(names[0])
        return tree.Assignment(names[0], is_new, expression, tokens.begin)

    def _branch(self, tokens: "_Tokens", known: set[str]) -> tree.Conditional:
        word = tokens.take()
        names, _ = tokens.names()
        if len(names) > 1:
            raise TemplateError("only range sets two variables at once", self._source, word.offset)
        expression = tokens.pipeline()
        tokens.finish()
        inner = {*known, *names}
        body, end = self._block(word, inner)
        otherwise = self._otherwise(word, end, inner)
        return tree.Conditional(names, expression, body, otherwise, word.text == "with", word.offset)

    def _otherwise(self, opened: TemplateToken, end: _End | None, known: set[str]) -> tree.NodeList:
        """What stands between the `else` and the `end` of a block, or nothing."""
        assert end is not None, "a block that is opened has an end, or is refused"
        tokens = self._tokens(end.piece, known)
        tokens.take()
        if end.word == "else" and tokens.keyword() in ("if", "with") and opened.text != "range":
            # `else if …` is an if that ends with the same end.
            return (self._branch(tokens, known),)
        tokens.finish()
        if end.word == "end":
            return ()
        body, last = self._block(opened, known)
        assert last is not None, "a block that is opened has an end, or is refused"
        if last.word == "else":
            raise TemplateError("this block has an else already", self._source, last.piece.offset)
        return body

    def _tokens(self, piece: SourcePiece, known: Collection[str]) -> "_Tokens":
        return _Tokens(self._source, piece.tokens or (), piece.offset, self._functions, known)

    def _range(self, tokens: "_Tokens", known: set[str]) -> tree.RangeLoop:
        word = tokens.take()
        names, _ = tokens.names()
        expression = tokens.pipeline()
        tokens.finish()
        self._ranges += 1
        body, end = self._block(word, {*known, *names})
        self._ranges -= 1
        return tree.RangeLoop(names, expression, body, self._otherwise(word, end, {*known, *names}), word.offset)

    def _define(self, tokens: "_Tokens") -> tree.TemplateNode | None:
        word = tokens.take()
        name = tokens.text(f"{word.text} wants a name in quotes")
        expression = tokens.pipeline() if word.text == "block" else None
        tokens.finish()
        # What it is given is its `$`: it does not see the variables of who calls it.
        outer, self._ranges = self._ranges, 0
        body, end = self._block(word, {"$"})
        self._ranges = outer
        if end is None or end.word == "else":
            raise TemplateError(f"{word.text} has no else", self._source, word.offset)
        if name in self._named:
            raise TemplateError(f'there is a template named "{name}" already', self._source, word.offset)
        self._named[name] = body
        return tree.Include(name, expression, word.offset) if word.text == "block" else None

    def _include(self, tokens: "_Tokens") -> tree.Include:
        word = tokens.take()
        name = tokens.text("template wants a name in quotes")
        expression = None if tokens.is_done else tokens.pipeline()
        tokens.finish()
        self._included.append((name, word.offset))
        return tree.Include(name, expression, word.offset)


class _Tokens:
    """The tokens of one action, and the expressions in them."""

    def __init__(
        self,
        source: str,
        tokens: tuple[TemplateToken, ...],
        begin: int,
        functions: Mapping[str, Arity],
        known: Collection[str],
    ) -> None:
        self._source = source
        self._tokens = tokens
        self._place = 0
        self._functions = functions
        self._known = set(known)
        self._depth = 0
        self.begin = begin

    @property
    def is_done(self) -> bool:
        return self._place >= len(self._tokens)

    @property
    def at(self) -> int:
        return self.begin if self.is_done else self._tokens[self._place].offset

    def keyword(self) -> str:
        """The word that stands here, or nothing."""
        return "" if self.is_done or self._tokens[self._place].kind != "word" else self._tokens[self._place].text

    def take(self) -> TemplateToken:
        self._place += 1
        return self._tokens[self._place - 1]

    def finish(self) -> None:
        if not self.is_done:
            self._refuse(f"{self._tokens[self._place].text} is too much here", self.at)

    def text(self, told: str) -> str:
        if self.is_done or self._tokens[self._place].kind not in ("quoted", "raw"):
            self._refuse(told, self.at)
        return self._constant_text(self.take())

    def names(self) -> tuple[tuple[str, ...], bool]:
        """The variables before `:=` or `=`, and whether it makes new ones."""
        kinds = [token.kind for token in self._tokens[self._place : self._place + 4]]
        for count, form in ((1, ["variable", "assign"]), (2, ["variable", "mark", "variable", "assign"])):
            if kinds[: len(form)] != form:
                continue
            taken = [self.take() for _ in form]
            is_new = taken[-1].text == ":="
            named = [token for token in taken if token.kind == "variable"]
            for token in named:
                if token.text == "$":
                    self._refuse("a variable has a name: $name", token.offset)
                if not is_new:
                    self._require_known(token)
            assert len(named) == count
            self._known.update(token.text for token in named if is_new)
            return tuple(token.text for token in named), is_new
        return (), True

    def pipeline(self) -> tree.Expression:
        self._depth += 1
        if self._depth > MAX_TEMPLATE_DEPTH:
            self._refuse(f"parentheses stand in each other at most {MAX_TEMPLATE_DEPTH} deep", self.at)
        expression = self._command(())
        while not self.is_done and self._tokens[self._place].text == "|":
            bar = self.take()
            if self.keyword() not in self._functions:
                self._refuse("only a function can stand after |", bar.offset if self.is_done else self.at)
            expression = self._command((expression,))
        self._depth -= 1
        return expression

    def _command(self, piped: tuple[tree.Expression, ...]) -> tree.Expression:
        if self.is_done:
            self._refuse("something is missing here: a field, a variable, a text or a function", self.at)
        token = self._tokens[self._place]
        if token.kind != "word" or token.text in _CONSTANTS:
            operand = self._operand()
            if not self.is_done and self._tokens[self._place].text not in ("|", ")"):
                self._refuse(
                    f"{token.text} is no function, so {self._tokens[self._place].text} cannot follow it", self.at
                )
            return operand
        arity = self._arity(self.take())
        arguments: list[tree.Expression] = []
        while not self.is_done and self._tokens[self._place].text not in ("|", ")"):
            arguments.append(self._operand())
        arguments.extend(piped)
        most = len(arguments) if arity.max_arguments is None else arity.max_arguments
        if not arity.min_arguments <= len(arguments) <= most:
            asked = (
                f"{arity.min_arguments}"
                if arity.min_arguments == arity.max_arguments
                else f"at least {arity.min_arguments}"
            )
            if arity.max_arguments is not None and arity.min_arguments != arity.max_arguments:
                asked = f"{arity.min_arguments} to {arity.max_arguments}"
            self._refuse(
                f"{token.text} takes {asked} argument{'s' * (asked != '1')}, and has {len(arguments)}", token.offset
            )
        return self._fields(tree.FunctionCall(token.text, tuple(arguments), token.offset))

    def _operand(self) -> tree.Expression:
        token = self.take()
        expression: tree.Expression
        match token.kind:
            case "quoted" | "raw":
                expression = tree.Constant(self._constant_text(token), token.offset)
            case "rune":
                expression = tree.Constant(ord(self._unescaped(token)), token.offset)
            case "number":
                expression = tree.Constant(self._number(token), token.offset)
            case "field":
                expression = tree.FieldAccess(tree.Dot(token.offset), token.text[1:], token.offset)
            case "dot":
                expression = tree.Dot(token.offset)
            case "variable":
                self._require_known(token)
                expression = tree.VariableReference(token.text, token.offset)
            case "word" if token.text in _CONSTANTS:
                expression = tree.Constant(_CONSTANTS[token.text], token.offset)
            case "word":
                if self._arity(token).min_arguments:
                    self._refuse(f"put parentheses around {token.text} and its arguments", token.offset)
                expression = tree.FunctionCall(token.text, (), token.offset)
            case "mark" if token.text == "(":
                expression = self.pipeline()
                if self.is_done or self._tokens[self._place].text != ")":
                    self._refuse("this ( has no )", token.offset)
                self.take()
            case _:
                self._refuse(f"{token.text} means nothing here", token.offset)
        return self._fields(expression)

    def _fields(self, expression: tree.Expression) -> tree.Expression:
        while not self.is_done:
            token = self._tokens[self._place]
            if token.kind != "field" or token.is_after_space:
                break
            self.take()
            expression = tree.FieldAccess(expression, token.text[1:], token.offset)
        return expression

    def _arity(self, token: TemplateToken) -> Arity:
        arity = self._functions.get(token.text)
        if arity is None:
            hint = _near(token.text, self._functions) or ": a field begins with a dot, a text stands in quotes"
            self._refuse(f"{token.text} is no function{hint}", token.offset)
        return arity

    def _require_known(self, token: TemplateToken) -> None:
        if token.text not in self._known and token.text != "$":
            near = _near(token.text, [name for name in sorted(self._known) if name != "$"])
            self._refuse(f"{token.text} was never set here{near}", token.offset)

    def _constant_text(self, token: TemplateToken) -> str:
        return token.text[1:-1] if token.kind == "raw" else self._unescaped(token)

    def _unescaped(self, token: TemplateToken) -> str:
        def put(found: re.Match[str]) -> str:
            digits = found[1] or found[2] or found[3]
            if digits:
                if int(digits, 16) > 0x10FFFF:
                    self._refuse(f"there is no character {found[0]}", token.offset + 1 + found.start())
                return chr(int(digits, 16))
            if found[4]:
                return _LETTERS.get(found[4], found[4])
            return self._refuse(
                f"{found[0]} means nothing: write \\\\ for a backslash", token.offset + 1 + found.start()
            )

        return _ESCAPE.sub(put, token.text[1:-1])

    def _number(self, token: TemplateToken) -> int | float:
        plain = token.text.replace("_", "")
        if len(plain) > 100:
            self._refuse("a number has at most 100 characters", token.offset)
        is_whole = plain.lstrip("+-").lower().startswith(("0x", "0o", "0b")) or plain.lstrip("+-").isdecimal()
        try:
            return int(plain, 0) if is_whole else float(plain)
        except ValueError:
            self._refuse(f"{token.text} is no number: write 8 or 0o10", token.offset)

    def _refuse(self, told: str, at: int) -> NoReturn:
        raise TemplateError(told, self._source, at)


def _near(name: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f": did you mean {near[0]}?" if near else ""
