"""Parses filters into syntax trees, by recursive descent.

Alternatives are tried in the order of the grammar, and the first match is used. If an alternative fails after it has
consumed text, no other can succeed (comments say why), so the time is linear in the length. Length, depth and number
of terms are limited to protect the stack and the memory of compiled filters.
"""

from typing import Final, NamedTuple

from wharf.languages.filters.errors import FilterSyntaxError, make_syntax_error
from wharf.languages.filters.lexer import FilterLexer, TextSpan
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
"""The length of an expression: limits the time of parsing."""
MAX_FILTER_DEPTH: Final = 64
"""How deep parentheses, `not`, `any` and `all` may nest: limits the stack."""
MAX_FILTER_TERMS: Final = 500
"""The number of terms in an expression: limits the time of evaluating it for one record."""

_SPACE_NAME: Final = "white space"
# Text of other languages that users write by mistake, and what to write instead.
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
    ("AND ", "write keywords in lower case"),
    ("OR ", "write keywords in lower case"),
    ("NOT ", "write keywords in lower case"),
)


class ParsedNode(NamedTuple):
    """A parsed node, and the offset after its text."""

    node: Expression
    end: int


def parse_filter(source: str) -> Expression:
    """Return the tree of an expression. Raises `FilterSyntaxError` with the location and what was expected there."""
    if len(source) > MAX_FILTER_CHARS:
        reason = f"the expression is longer than {MAX_FILTER_CHARS} characters"
        raise make_syntax_error(source, MAX_FILTER_CHARS, reason)
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise make_syntax_error(source, error.start, "the expression is not UTF-8") from None
    return _FilterParser(source).parse()


class _FilterParser:
    """Parses one expression.

    Each method `_parse_…` takes an offset, and returns `None` if its rule does not match there.
    """

    def __init__(self, source: str) -> None:
        self._lexer = FilterLexer(source)
        self._source = source
        self._depth = 0
        self._terms = 0
        # The furthest offset that any rule reached, and what it expected there: for the error if nothing matches.
        self._furthest = 0
        self._expected: set[str] = set()

    def parse(self) -> Expression:
        """Return the tree of the whole text. Raises `FilterSyntaxError`."""
        parsed = self._parse_or(self._lexer.skip_space(0))
        if parsed is not None:
            end = self._lexer.skip_space(parsed.end)
            if end == len(self._source):
                return parsed.node
            self._expect(end, "the end")
            if self._lexer.starts_with(end, ")") and self._furthest == end:
                raise make_syntax_error(self._source, end, 'rule "grouping": Unmatched parentheses')
        raise self._make_no_match_error()

    # -- connectives ---------------------------------------------------------------------------------------------

    def _parse_or(self, offset: int) -> ParsedNode | None:
        """Parse operands joined by `or`. An `any` or `all` without parentheses may only be the last operand."""
        first = self._parse_and(offset)
        if first is None:
            return self._parse_quantified(offset)
        operands, end = [first.node], first.end
        while (next_offset := self._parse_joining_keyword("or", end)) is not None:
            next_operand = self._parse_and(next_offset)
            is_last = next_operand is None
            next_operand = next_operand or self._parse_quantified(next_offset)
            if next_operand is None:
                # The text continues with `or` and no operand, so no other rule can match it either.
                break
            operands.append(next_operand.node)
            end = next_operand.end
            if is_last:
                break
        return ParsedNode(operands[0] if len(operands) == 1 else Or(tuple(operands)), end)

    def _parse_and(self, offset: int) -> ParsedNode | None:
        """Parse operands joined by `and`."""
        first = self._parse_not(offset)
        if first is None:
            return None
        operands, end = [first.node], first.end
        while (next_offset := self._parse_joining_keyword("and", end)) is not None:
            next_operand = self._parse_not(next_offset)
            if next_operand is None:
                break
            operands.append(next_operand.node)
            end = next_operand.end
        return ParsedNode(operands[0] if len(operands) == 1 else And(tuple(operands)), end)

    def _parse_not(self, offset: int) -> ParsedNode | None:
        """Parse `not` and its operand, or an operand without `not`."""
        next_offset = self._parse_keyword("not", offset)
        if next_offset is not None:
            self._enter_nesting(offset)
            operand = self._parse_not(next_offset)
            self._depth -= 1
            if operand is not None:
                return ParsedNode(Not(operand.node), operand.end)
        # `not` may also be the name of a field. Only one term is parsed again then, so the time stays linear.
        return self._parse_primary(offset)

    def _parse_primary(self, offset: int) -> ParsedNode | None:
        """Parse an expression in parentheses, or a term."""
        self._expect(offset, '"("', '"not"', "a selector")
        if not self._lexer.starts_with(offset, "("):
            return self._parse_match(offset)
        self._enter_nesting(offset)
        inner = self._parse_or(self._lexer.skip_space(offset + 1))
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

    def _parse_match(self, offset: int) -> ParsedNode | None:
        """Parse a term: a selector with an operator, or a value with `in` and a selector."""
        selector = self._parse_selector(offset)
        if selector is not None:
            parsed = self._parse_operation(*selector)
            if parsed is not None:
                return self._count_term(parsed, offset)
        parsed = self._parse_containment(offset)
        return None if parsed is None else self._count_term(parsed, offset)

    def _parse_operation(self, selector: Selector, end: int) -> ParsedNode | None:
        """Parse the rest of a term after its selector: an operator with a value, or `is` with a condition."""
        next_offset = self._lexer.skip_space(end)
        self._expect(next_offset, '"=="', '"!="')
        for operator in (FilterOperator.EQUAL, FilterOperator.NOT_EQUAL):
            if self._lexer.starts_with(next_offset, operator.value):
                return self._parse_comparison(selector, operator, self._lexer.skip_space(next_offset + 2))
        if self._skip_separator(end) is None:
            return None
        not_offset = self._parse_keyword("not", next_offset)
        start = next_offset if not_offset is None else not_offset
        for operator in (FilterOperator.CONTAINS, FilterOperator.MATCHES):
            value_offset = self._parse_keyword(operator.value, start)
            if value_offset is not None:
                negatable_operator = operator if not_offset is None else FilterOperator(f"not {operator.value}")
                return self._parse_comparison(selector, negatable_operator, value_offset)
        is_offset = self._parse_keyword("is", next_offset)
        return None if is_offset is None else self._parse_condition(selector, is_offset)

    def _parse_comparison(self, selector: Selector, operator: FilterOperator, offset: int) -> ParsedNode | None:
        """Parse the value on the right of an operator."""
        value = self._parse_value(offset)
        return None if value is None else ParsedNode(Match(selector, operator, value[0]), value[1])

    def _parse_condition(self, selector: Selector, offset: int) -> ParsedNode | None:
        """Parse what follows `is`: an optional `not`, then `empty` or `nil`."""
        not_offset = self._parse_keyword("not", offset)
        start = offset if not_offset is None else not_offset
        self._expect(start, '"empty"', '"nil"')
        for word in ("empty", "nil"):
            if self._lexer.starts_with(start, word):
                operator = FilterOperator(f"is {word}" if not_offset is None else f"is not {word}")
                return ParsedNode(Match(selector, operator), start + len(word))
        return None

    def _parse_containment(self, offset: int) -> ParsedNode | None:
        """Parse a term of the form `value in selector` or `value not in selector`."""
        value = self._parse_value(offset)
        if value is None:
            return None
        next_offset = self._skip_separator(value[1])
        if next_offset is None:
            self._reject_quoted_selector(offset, value[1])
            return None
        not_offset = self._parse_keyword("not", next_offset)
        selector_offset = self._parse_keyword("in", next_offset if not_offset is None else not_offset)
        if selector_offset is None:
            self._reject_quoted_selector(offset, next_offset)
            return None
        selector = self._parse_selector(selector_offset)
        if selector is None:
            self._expect(selector_offset, "a selector")
            return None
        operator = FilterOperator.CONTAINS if not_offset is None else FilterOperator.NOT_CONTAINS
        return ParsedNode(Match(selector[0], operator, value[0]), selector[1])

    def _reject_quoted_selector(self, offset: int, next_offset: int) -> None:
        """Raise a syntax error for a quoted name on the left of an operator, such as `"Name" == web`."""
        if self._source[offset] in '"`' and self._source[next_offset : next_offset + 2] in ("==", "!="):
            reason = 'rule "selector": Invalid selector; a selector has no quotes, or is a pointer like "/Meta/key"'
            raise make_syntax_error(self._source, offset, reason)

    # -- any and all ---------------------------------------------------------------------------------------------

    def _parse_quantified(self, offset: int) -> ParsedNode | None:
        """Parse an expression that starts with `any` or `all`."""
        self._expect(offset, '"any"', '"all"')
        for quantifier in Quantifier:
            next_offset = self._parse_keyword(quantifier.value, offset)
            if next_offset is not None:
                return self._parse_quantified_body(quantifier, offset, next_offset)
        return None

    def _parse_quantified_body(self, quantifier: Quantifier, offset: int, selector_offset: int) -> ParsedNode | None:
        """Parse what follows `any` or `all`: a selector, `as`, the bound names, and the body in braces.

        Return `None` if it does not match.
        """
        selector = self._parse_selector(selector_offset)
        if selector is None:
            self._expect(selector_offset, "a selector")
            return None
        names_offset = self._parse_joining_keyword("as", selector[1])
        names = None if names_offset is None else self._parse_bound_names(names_offset)
        if names is None:
            return None
        (member, key, value), end = names
        opening = self._lexer.skip_space(end)
        self._expect(opening, '"{"')
        if not self._lexer.starts_with(opening, "{"):
            return None
        self._enter_nesting(offset)
        body = self._parse_or(self._lexer.skip_space(opening + 1))
        self._depth -= 1
        if body is None:
            return None
        closing = self._lexer.skip_space(body.end)
        self._expect(closing, '"}"')
        if not self._lexer.starts_with(closing, "}"):
            return None
        node = QuantifiedExpression(
            quantifier, selector[0], body.node, member=member, key=key, value=value, offset=offset
        )
        return ParsedNode(node, closing + 1)

    def _parse_bound_names(self, offset: int) -> tuple[tuple[str | None, str | None, str | None], int] | None:
        """Parse the names after `as`: `x`, `i, v`, `i, _` or `_, v`.

        Return the names (member, key, value), each `None` if it is not bound, and the offset after them. Return `None`
        if they do not match.
        """
        first = self._parse_bound_name(offset)
        if first is None:
            self._expect(offset, "a name", '"_"')
            return None
        comma = self._lexer.skip_space(first[1])
        if not self._lexer.starts_with(comma, ","):
            self._expect(comma, '","')
            return None if first[0] is None else ((first[0], None, None), first[1])
        second_offset = self._lexer.skip_space(comma + 1)
        second = self._parse_bound_name(second_offset)
        if second is None or (first[0] is None and second[0] is None):
            self._expect(second_offset, "a name")
            return None
        return (None, first[0], second[0]), second[1]

    def _parse_bound_name(self, offset: int) -> tuple[str | None, int] | None:
        """Parse a name, and return it with the offset after it. The name `_` is returned as `None`.

        Return `None` if neither starts here.
        """
        if self._lexer.starts_with(offset, "_"):
            return None, offset + 1
        name = self._lexer.read_name(offset)
        return None if name is None else (name.text, name.end)

    # -- selectors and values ------------------------------------------------------------------------------------

    def _parse_selector(self, offset: int) -> tuple[Selector, int] | None:
        """Parse a selector: a JSON pointer, or names, indexes and keys joined by dots and brackets.

        Return it with the offset after it, or `None` if no selector starts here.
        """
        pointer = self._lexer.read_pointer(offset)
        if pointer is not None:
            return Selector(pointer.parts, offset=offset, part_offsets=pointer.part_offsets), pointer.end
        first = self._lexer.read_name(offset)
        if first is None:
            return None
        parts, part_offsets, end = [first.text], [offset], first.end
        while True:
            self._expect(end, '"."', '"["')
            joint = self._lexer.skip_space(end)  # White space is free between tokens (filtering rule 5).
            if self._lexer.starts_with(joint, "."):
                start = self._lexer.skip_space(joint + 1)
                part = self._lexer.read_name(start) or self._lexer.read_index(start)
                if part is None:
                    self._expect(joint + 1, "a name", "an index")
                    break
            elif self._lexer.starts_with(joint, "["):
                start = self._lexer.skip_space(joint + 1)
                part = self._parse_key(start)
            else:
                break
            parts.append(part.text)
            part_offsets.append(start)
            end = part.end
        return Selector(tuple(parts), offset=offset, part_offsets=tuple(part_offsets)), end

    def _parse_key(self, offset: int) -> TextSpan:
        """Parse the rest of a key such as `["text"]` after its opening bracket. A mismatch is a syntax error.

        Nothing else starts with a bracket.
        """
        key = self._lexer.read_string(offset)
        if key is None:
            reason = 'rule "index": Invalid index; write ["key"] for a map and .0 for a list'
            raise make_syntax_error(self._source, offset, reason)
        closing = self._lexer.skip_space(key.end)
        if not self._lexer.starts_with(closing, "]"):
            raise make_syntax_error(self._source, key.end, 'rule "index": Unclosed index expression')
        return TextSpan(key.text, closing + 1)

    def _parse_value(self, offset: int) -> tuple[LiteralValue, int] | None:
        """Parse a string, a number or a word, and return it with the offset after it; `None` if no value starts here.

        A word is a text, even if a field has that name.
        """
        parsed = self._lexer.read_string(offset) or self._lexer.read_number(offset)
        if parsed is not None:
            return LiteralValue(parsed.text, offset=offset), parsed.end
        word = self._parse_selector(offset)
        if word is not None:
            return LiteralValue(self._lexer.read_without_space(offset, word[1]), offset=offset), word[1]
        self._expect(offset, "a word", "a number", "a string")
        return None

    # -- small parts ---------------------------------------------------------------------------------------------

    def _parse_keyword(self, word: str, offset: int) -> int | None:
        """Return the offset of the token after this word, or `None` if the word is not at the offset.

        White space around the word is free (filtering rule 5): it is needed only to separate the word from a name.
        """
        self._expect(offset, f'"{word}"')
        if not self._lexer.starts_with(offset, word):
            return None
        end = offset + len(word)
        if end == len(self._source) or self._lexer.is_in_name(end):
            self._expect(end, _SPACE_NAME)
            return None
        return self._lexer.skip_space(end)

    def _parse_joining_keyword(self, word: str, end: int) -> int | None:
        """Return the offset of the token after this word, which follows the token that ends at `end`, or `None`."""
        offset = self._skip_separator(end)
        return None if offset is None else self._parse_keyword(word, offset)

    def _skip_separator(self, end: int) -> int | None:
        """Return the offset of the next token, or `None` if the token before `end` is a name and no space follows."""
        offset = self._lexer.skip_space(end)
        if offset == end:
            self._expect(end, _SPACE_NAME)
            if self._lexer.is_end_of_name(end):
                return None
        return offset

    def _enter_nesting(self, offset: int) -> None:
        """Count one more level of nesting. Raises `FilterSyntaxError` beyond `MAX_FILTER_DEPTH`."""
        self._depth += 1
        if self._depth > MAX_FILTER_DEPTH:
            reason = f'rule "grouping": nested more than {MAX_FILTER_DEPTH} deep'
            raise make_syntax_error(self._source, offset, reason)

    def _count_term(self, parsed: ParsedNode, offset: int) -> ParsedNode:
        """Count one more term and return it.

        Raises `FilterSyntaxError` if the expression has more than `MAX_FILTER_TERMS`.
        """
        self._terms += 1
        if self._terms > MAX_FILTER_TERMS:
            raise make_syntax_error(self._source, offset, f'rule "match": more than {MAX_FILTER_TERMS} terms')
        return parsed

    def _expect(self, offset: int, *alternatives: str) -> None:
        """Record what would have matched at an offset, for the error if nothing matches."""
        if offset > self._furthest:
            self._furthest = offset
            self._expected = set()
        if offset == self._furthest:
            self._expected.update(alternatives)

    def _make_no_match_error(self) -> FilterSyntaxError:
        """Return the error for the furthest offset, with what was expected there and a hint for known mistakes."""
        *all_but_last, last = sorted(self._expected)
        expected = f"{', '.join(all_but_last)} or {last}" if all_but_last else last
        hint = next((hint for prefix, hint in _HINTS if self._lexer.starts_with(self._furthest, prefix)), "")
        if self._source[: self._furthest].split()[-1:] in (["any"], ["all"]):
            hint = "put any and all in parentheses, or write them last, after or"
        reason = f"no match found, expected: {expected}" + (f"; {hint}" if hint else "")
        return make_syntax_error(self._source, self._furthest, reason)
