"""Hypothesis strategies for expressions: arbitrary trees, and trees over a type that often fit the type."""

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

from wharf.languages.filters import FilterSubject, SelectorInfo, list_selectors
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

T = TypeVar("T")

UNARY = (FilterOperator.IS_EMPTY, FilterOperator.IS_NOT_EMPTY, FilterOperator.IS_NIL, FilterOperator.IS_NOT_NIL)
BINARY = tuple(operator for operator in FilterOperator if operator not in UNARY)

NAMES = (
    "x",
    "i",
    "v",
    "Name",
    "not",
    "in",
    "is",
    "any",
    "all",
    "contains",
    "matches",
    "or",
    "and",
    "as",
    "empty",
    "a/b",
)
texts = st.text(st.characters(codec="utf-8"), max_size=8)
names = st.sampled_from(NAMES) | st.from_regex(r"[A-Za-z][A-Za-z0-9_/]{0,5}", fullmatch=True)
pointer_parts = st.text(st.sampled_from("aZ0é-_.~:|/"), min_size=1, max_size=4)
# Written with dots and brackets, or as a pointer, whose first part is not a name.
any_selectors = st.builds(
    lambda first, other_parts: Selector((first, *other_parts)), names, st.lists(names | texts, max_size=3)
)
any_selectors |= st.lists(pointer_parts, min_size=1, max_size=3).map(lambda parts: Selector(tuple(parts)))


def trees(
    selectors_: st.SearchStrategy[Selector], values: st.SearchStrategy[str], bound: st.SearchStrategy[str]
) -> st.SearchStrategy[Expression]:
    term = st.builds(Match, selectors_, st.sampled_from(UNARY))
    term |= st.builds(Match, selectors_, st.sampled_from(BINARY), values.map(LiteralValue))
    return combine_terms(term, selectors_, bound)


def combine_terms(
    term: st.SearchStrategy[Match], collected: st.SearchStrategy[Selector], bound: st.SearchStrategy[str]
) -> st.SearchStrategy[Expression]:
    """Return trees that combine these terms with every operator and quantifier."""

    def grow(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
        operands = st.lists(inner, min_size=2, max_size=3).map(tuple)
        quantifiers = st.sampled_from(Quantifier)
        two_names = st.tuples(st.none() | bound, bound) | st.tuples(bound, st.none())
        return (
            inner.map(Not)
            | operands.map(And)
            | operands.map(Or)
            | st.builds(
                lambda q, s, b, m: QuantifiedExpression(q, s, b, member=m), quantifiers, collected, inner, bound
            )
            | st.builds(
                lambda q, s, b, n: QuantifiedExpression(q, s, b, key=n[0], value=n[1]),
                quantifiers,
                collected,
                inner,
                two_names,
            )
        )

    return st.recursive(term, grow, max_leaves=6)


any_trees = trees(any_selectors, texts, names)

KEYS = ("a", "x.y", "zzz", "one", "none", "image", "args", "deep", "key", "0", "1", "9")
LITERALS = (
    *("web", "b", "", "1", "0", "2", "50", "-1", "0x32", "0b1", "017", "1_000", "1.5", "2.0", "1e3", "true", "f"),
    *("^w", "b$", "d.1", "[0-9]+", "(", "blue", "calm", "dc1", "s1", "abc-1", "2026", "255", "256", "9" * 20),
    *("two", "running", "service", "default", "k", "null"),
)
FITTING = {"bool": ("true", "f", "1"), "int": ("0", "50", "0x32", "2"), "uint": ("7", "0"), "float": ("1.5", "2")}
FOR_ANYTHING = ("1", "0")
BOUND = ("x", "y")


def sample_from(choices: Sequence[T]) -> st.SearchStrategy[T]:
    """Like `sampled_from`, but without printing hundreds of choices wherever Hypothesis prints the strategy."""
    return st.integers(0, len(choices) - 1).map(lambda index: choices[index])


def selectors_over(subject: FilterSubject | type) -> st.SearchStrategy[Selector]:
    """Return selectors of a type with keys and indexes filled in, selectors of bound names, and some that select nothing."""
    patterns = [tuple(info.selector.split(".")) for info in list_selectors(subject)]
    fields = sorted({part for parts in patterns for part in parts if not part.startswith("<")})
    filled = sample_from(patterns).flatmap(_fill_placeholders)
    below = st.builds(lambda s, part: Selector((*s.parts, part)), filled, sample_from((*fields, *KEYS)))
    return st.one_of(filled, filled, filled, _selectors_of_bound(fields), below)


def _selectors_of_bound(fields: list[str]) -> st.SearchStrategy[Selector]:
    other_parts = st.lists(sample_from((*fields[:30], *KEYS)), max_size=1)
    return st.builds(lambda first, other_parts: Selector((first, *other_parts)), st.sampled_from(BOUND), other_parts)


def _fill_placeholders(parts: tuple[str, ...]) -> st.SearchStrategy[Selector]:
    keys, indexes = st.sampled_from(KEYS), st.sampled_from(("0", "1", "9"))
    filled = [{"<key>": keys, "<index>": indexes}.get(part, st.just(part)) for part in parts]
    return st.tuples(*filled).map(Selector)


def fitting_terms(subject: FilterSubject | type) -> st.SearchStrategy[Match]:
    """Return terms with an operator of the kind and a value that mostly fits it."""

    def term(info: SelectorInfo) -> st.SearchStrategy[Match]:
        own = [FilterOperator(operator) for operator in info.operators]
        operators = st.sampled_from([operator for operator in FilterOperator if operator.positive in own])
        values = st.sampled_from(FITTING.get(info.kind) or (LITERALS if info.kind == "string" else FOR_ANYTHING))
        return st.builds(_match, _fill_placeholders(tuple(info.selector.split("."))), operators, values)

    return sample_from([info for info in list_selectors(subject) if info.operators]).flatmap(term)


def _match(selector: Selector, operator: FilterOperator, text: str) -> Match:
    return Match(selector, operator, None if operator in UNARY else LiteralValue(text))


def trees_over(subject: FilterSubject | type) -> st.SearchStrategy[Expression]:
    """Return trees over a type: arbitrary ones, and ones whose operators and values mostly fit."""
    anything = trees(selectors_over(subject), st.sampled_from(LITERALS), st.sampled_from(BOUND))
    collections = [tuple(i.selector.split(".")) for i in list_selectors(subject) if i.kind in ("list", "map")]
    collected = sample_from(collections).flatmap(_fill_placeholders)
    of_bound = st.builds(
        _match, _selectors_of_bound([]), st.sampled_from(FilterOperator), st.sampled_from(FOR_ANYTHING)
    )
    fitting = fitting_terms(subject)
    return (
        anything
        | combine_terms(fitting, collected, st.sampled_from(BOUND))
        | combine_terms(fitting | of_bound, collected, st.just("x"))
    )
