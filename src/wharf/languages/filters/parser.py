"""From text to tree, by recursive descent.

Alternatives are tried in the order of the grammar, and the first that fits is kept. Where one fails after it went some
way, no other could go further (the comments say why), so the time is linear in the length. Length, depth and the
number of terms are bounded, so that neither the stack nor what is compiled from the tree can be made large.
"""

from typing import Final, NamedTuple

from wharf.languages.filters.errors import FilterSyntaxError, make_syntax_error
from wharf.languages.filters.lexer import Lexer, TextSpan
from wharf.languages.filters.tree import (
    And,
    Expression,
    FilterOperator,
    LiteralValue,
    Match,
    Not,
    Or,
    QuantifiedExpression,
    Quantifier,
    Selector,
)

MAX_FILTER_CHARS: Final = 10_000
MAX_FILTER_DEPTH: Final = 64
MAX_FILTER_TERMS: Final = 500

_SPACE: Final = "white space"
# What people write who know another language, and what to write here.
_HINTS: Final = (
    ("&&", 'write "and"'),
    ("||", 'write "or"'),
    ("'", "strings take double quotes or backticks"),
    ("==", ""),
    ("=", 'write "=="'),
    ("!", 'write "not" and a space'),
    ("<", "there is no comparison by order"),
    (">", "there is no comparison by order"),
    ("-", "a value with a dash needs quotes"),
    ("AND ", "keywords are written small"),
    ("OR ", "keywords are written small"),
    ("NOT ", "keywords are written small"),
)


class ParsedNode(NamedTuple):
    node: Expression
    end: int


def parse_filter(source: str) -> Expression:
    """The tree of an expression, or FilterSyntaxError with the place and what was expected there."""
    if len(source) > MAX_FILTER_CHARS:
        reason = f"the expression is longer than {MAX_FILTER_CHARS} characters"
        raise make_syntax_error(source, MAX_FILTER_CHARS, reason)
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise make_syntax_error(source, error.start, "the expression is not UTF-8") from None
    return _Parser(source).parse()


class _Parser:
    def __init__(self, source: str) -> None:
        self._lexer = Lexer(source)
        self._source = source
        self._depth = 0
        self._terms = 0
        # How far anything got, and what could have stood there: what a reader needs to know when nothing fits.
        self._furthest = 0
        self._expected: set[str] = set()

    def parse(self) -> Expression:
        parsed = self._alternatives(self._lexer.skip_space(0))
        if parsed is not None:
            end = self._lexer.skip_space(parsed.end)
            if end == len(self._source):
                return parsed.node
            self._expect(end, "the end")
            if self._lexer.starts_with(end, ")") and self._furthest == end:
                raise make_syntax_error(self._source, end, 'rule "grouping": Unmatched parentheses')
        raise self._nothing_fits()

    # -- connectives ---------------------------------------------------------------------------------------------

    def _alternatives(self, at: int) -> ParsedNode | None:
        """Terms joined by `or`. A collection may stand alone or as the last of them."""
        first = self._conjunction(at)
        if first is None:
            return self._collection(at)
        operands, end = [first.node], first.end
        while (after := self._joined_by("or", end)) is not None:
            following = self._conjunction(after)
            is_last = following is None
            following = following or self._collection(after)
            if following is None:
                # What follows is `or`, which may stand nowhere after a whole expression: this has failed.
                break
            operands.append(following.node)
            end = following.end
            if is_last:
                break
        return ParsedNode(operands[0] if len(operands) == 1 else Or(tuple(operands)), end)

    def _conjunction(self, at: int) -> ParsedNode | None:
        first = self._negation(at)
        if first is None:
            return None
        operands, end = [first.node], first.end
        while (after := self._joined_by("and", end)) is not None:
            following = self._negation(after)
            if following is None:
                break
            operands.append(following.node)
            end = following.end
        return ParsedNode(operands[0] if len(operands) == 1 else And(tuple(operands)), end)

    def _negation(self, at: int) -> ParsedNode | None:
        after = self._keyword("not", at)
        if after is not None:
            self._descend(at)
            operand = self._negation(after)
            self._depth -= 1
            if operand is not None:
                return ParsedNode(Not(operand.node), operand.end)
        # `not` may be the name of a field: only a single term can follow from here, so the way back is short.
        return self._primary(at)

    def _primary(self, at: int) -> ParsedNode | None:
        self._expect(at, '"("', '"not"', "a selector")
        if not self._lexer.starts_with(at, "("):
            return self._match(at)
        self._descend(at)
        inner = self._alternatives(self._lexer.skip_space(at + 1))
        self._depth -= 1
        if inner is None:
            return None
        end = self._lexer.skip_space(inner.end)
        if self._lexer.starts_with(end, ")"):
            return ParsedNode(inner.node, end + 1)
        if end == len(self._source):
            raise make_syntax_error(self._source, end, 'rule "grouping": Unmatched parentheses')
        self._expect(end, '")"')
        return None

    # -- terms ---------------------------------------------------------------------------------------------------

    def _match(self, at: int) -> ParsedNode | None:
        selector = self._selector(at)
        if selector is not None:
            found = self._operation(*selector)
            if found is not None:
                return self._counted(found, at)
        found = self._containment(at)
        return None if found is None else self._counted(found, at)

    def _operation(self, selector: Selector, end: int) -> ParsedNode | None:
        """What may follow a selector: an operator with a value, or one that needs none."""
        after = self._lexer.skip_space(end)
        self._expect(after, '"=="', '"!="')
        for operator in (FilterOperator.EQUAL, FilterOperator.NOT_EQUAL):
            if self._lexer.starts_with(after, operator.value):
                return self._compared(selector, operator, self._lexer.skip_space(after + 2))
        if after == end:
            self._expect(end, _SPACE)
            return None
        denied = self._keyword("not", after)
        start = after if denied is None else denied
        for operator in (FilterOperator.CONTAINS, FilterOperator.MATCHES):
            value_at = self._keyword(operator.value, start)
            if value_at is not None:
                chosen = operator if denied is None else FilterOperator(f"not {operator.value}")
                return self._compared(selector, chosen, value_at)
        asked = self._keyword("is", after)
        return None if asked is None else self._condition(selector, asked)

    def _compared(self, selector: Selector, operator: FilterOperator, at: int) -> ParsedNode | None:
        value = self._value(at)
        return None if value is None else ParsedNode(Match(selector, operator, value[0]), value[1])

    def _condition(self, selector: Selector, at: int) -> ParsedNode | None:
        denied = self._keyword("not", at)
        start = at if denied is None else denied
        self._expect(start, '"empty"', '"nil"')
        for word in ("empty", "nil"):
            if self._lexer.starts_with(start, word):
                operator = FilterOperator(f"is {word}" if denied is None else f"is not {word}")
                return ParsedNode(Match(selector, operator), start + len(word))
        return None

    def _containment(self, at: int) -> ParsedNode | None:
        """A value, `in` or `not in`, a selector."""
        value = self._value(at)
        if value is None:
            return None
        after = self._lexer.skip_space(value[1])
        if after == value[1]:
            self._expect(after, _SPACE)
            self._refuse_operator_after_string(at, after)
            return None
        denied = self._keyword("not", after)
        selector_at = self._keyword("in", after if denied is None else denied)
        if selector_at is None:
            self._refuse_operator_after_string(at, after)
            return None
        selector = self._selector(selector_at)
        if selector is None:
            self._expect(selector_at, "a selector")
            return None
        operator = FilterOperator.CONTAINS if denied is None else FilterOperator.NOT_CONTAINS
        return ParsedNode(Match(selector[0], operator, value[0]), selector[1])

    def _refuse_operator_after_string(self, at: int, after: int) -> None:
        """`"Name" == web`: a string on the left that is no pointer."""
        if self._source[at] in '"`' and self._source[after : after + 2] in ("==", "!="):
            reason = 'rule "selector": Invalid selector; a selector has no quotes, or is a pointer like "/Meta/key"'
            raise make_syntax_error(self._source, at, reason)

    # -- collections ---------------------------------------------------------------------------------------------

    def _collection(self, at: int) -> ParsedNode | None:
        self._expect(at, '"any"', '"all"')
        for quantifier in Quantifier:
            after = self._keyword(quantifier.value, at)
            if after is not None:
                return self._quantified(quantifier, at, after)
        return None

    def _quantified(self, quantifier: Quantifier, at: int, selector_at: int) -> ParsedNode | None:
        selector = self._selector(selector_at)
        if selector is None:
            self._expect(selector_at, "a selector")
            return None
        names_at = self._joined_by("as", selector[1])
        names = None if names_at is None else self._names(names_at)
        if names is None:
            return None
        (member, key, value), end = names
        opening = self._lexer.skip_space(end)
        self._expect(opening, '"{"')
        if not self._lexer.starts_with(opening, "{"):
            return None
        self._descend(at)
        body = self._alternatives(self._lexer.skip_space(opening + 1))
        self._depth -= 1
        if body is None:
            return None
        closing = self._lexer.skip_space(body.end)
        self._expect(closing, '"}"')
        if not self._lexer.starts_with(closing, "}"):
            return None
        node = QuantifiedExpression(quantifier, selector[0], body.node, member=member, key=key, value=value, offset=at)
        return ParsedNode(node, closing + 1)

    def _names(self, at: int) -> tuple[tuple[str | None, str | None, str | None], int] | None:
        """`x`, `i, v`, `i, _` or `_, v`: (member, key, value) and the place after them."""
        first = self._name_or_blank(at)
        if first is None:
            self._expect(at, "a name", '"_"')
            return None
        comma = self._lexer.skip_space(first[1])
        if not self._lexer.starts_with(comma, ","):
            self._expect(comma, '","')
            return None if first[0] is None else ((first[0], None, None), first[1])
        second_at = self._lexer.skip_space(comma + 1)
        second = self._name_or_blank(second_at)
        if second is None or (first[0] is None and second[0] is None):
            self._expect(second_at, "a name")
            return None
        return (None, first[0], second[0]), second[1]

    def _name_or_blank(self, at: int) -> tuple[str | None, int] | None:
        if self._lexer.starts_with(at, "_"):
            return None, at + 1
        name = self._lexer.read_name(at)
        return None if name is None else (name.text, name.end)

    # -- selectors and values ------------------------------------------------------------------------------------

    def _selector(self, at: int) -> tuple[Selector, int] | None:
        pointer = self._lexer.read_pointer(at)
        if pointer is not None:
            return Selector(pointer.parts, offset=at, part_offsets=pointer.part_offsets), pointer.end
        first = self._lexer.read_name(at)
        if first is None:
            return None
        texts, places, end = [first.text], [at], first.end
        while True:
            self._expect(end, '"."', '"["')
            if self._lexer.starts_with(end, "."):
                part = self._lexer.read_name(end + 1) or self._lexer.read_index(end + 1)
                if part is None:
                    self._expect(end + 1, "a name", "an index")
                    break
                texts.append(part.text)
                places.append(end + 1)
                end = part.end
            elif self._lexer.starts_with(end, "["):
                key = self._key(end)
                texts.append(key.text)
                places.append(end + 1)
                end = key.end
            else:
                break
        return Selector(tuple(texts), offset=at, part_offsets=tuple(places)), end

    def _key(self, at: int) -> TextSpan:
        """`["text"]`. Nothing else may begin by a bracket, so what is wrong is told at once."""
        key = self._lexer.read_string(at + 1)
        if key is None:
            reason = 'rule "index": Invalid index; write ["key"] for a map and .0 for a list'
            raise make_syntax_error(self._source, at + 1, reason)
        if not self._lexer.starts_with(key.end, "]"):
            raise make_syntax_error(self._source, key.end, 'rule "index": Unclosed index expression')
        return TextSpan(key.text, key.end + 1)

    def _value(self, at: int) -> tuple[LiteralValue, int] | None:
        # A word is taken as text, whatever selector it might be.
        found = self._lexer.read_string(at) or self._lexer.read_number(at)
        if found is not None:
            return LiteralValue(found.text, offset=at), found.end
        word = self._selector(at)
        if word is not None:
            return LiteralValue(self._source[at : word[1]], offset=at), word[1]
        self._expect(at, "a word", "a number", "a string")
        return None

    # -- small parts ---------------------------------------------------------------------------------------------

    def _keyword(self, word: str, at: int) -> int | None:
        """The place after a word and the white space that it needs."""
        self._expect(at, f'"{word}"')
        if not self._lexer.starts_with(at, word):
            return None
        end = at + len(word)
        after = self._lexer.skip_space(end)
        if after == end:
            self._expect(end, _SPACE)
            return None
        return after

    def _joined_by(self, word: str, end: int) -> int | None:
        """The place after white space, a word and white space."""
        at = self._lexer.skip_space(end)
        if at == end:
            self._expect(end, _SPACE)
            return None
        return self._keyword(word, at)

    def _descend(self, at: int) -> None:
        self._depth += 1
        if self._depth > MAX_FILTER_DEPTH:
            reason = f'rule "grouping": nested more than {MAX_FILTER_DEPTH} deep'
            raise make_syntax_error(self._source, at, reason)

    def _counted(self, parsed: ParsedNode, at: int) -> ParsedNode:
        self._terms += 1
        if self._terms > MAX_FILTER_TERMS:
            raise make_syntax_error(self._source, at, f'rule "match": more than {MAX_FILTER_TERMS} terms')
        return parsed

    def _expect(self, at: int, *what: str) -> None:
        if at > self._furthest:
            self._furthest = at
            self._expected = set()
        if at == self._furthest:
            self._expected.update(what)

    def _nothing_fits(self) -> FilterSyntaxError:
        *some, last = sorted(self._expected)
        expected = f"{', '.join(some)} or {last}" if some else last
        hint = next((hint for sign, hint in _HINTS if self._lexer.starts_with(self._furthest, sign)), "")
        if self._source[: self._furthest].split()[-1:] in (["any"], ["all"]):
            hint = "any and all stand alone, in parentheses, or last after or"
        reason = f"no match found, expected: {expected}" + (f"; {hint}" if hint else "")
        return make_syntax_error(self._source, self._furthest, reason)
