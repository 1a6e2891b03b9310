"""Compiles filters: parses the text, checks it against the record type, and builds a predicate from closures.

Lookups and decisions that are the same for all records happen once, at compile time. Compiled filters are cached; the
cache is limited by weight because patterns hold memory.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from wharf.languages.filters import untyped
from wharf.languages.filters.errors import FilterError
from wharf.languages.filters.kinds import (
    FilterSubject,
    IntegerKind,
    ListKind,
    MapKind,
    StructKind,
    TextKind,
    TimeKind,
    UntypedKind,
    ValueKind,
    get_filter_subject,
)
from wharf.languages.filters.operators import (
    COST_SHIFT,
    OperatorMismatch,
    TermTest,
    ValueTest,
    count_value_steps,
    make_test,
)
from wharf.languages.filters.parser import parse_filter
from wharf.languages.filters.scope import (
    KEY_SLOT,
    MAX_STEPS,
    STEPS_SLOT,
    VALUE_SLOT,
    BoundName,
    Frame,
    NameScope,
    Predicate,
)
from wharf.languages.filters.selectors import MISSING, FilterErrorBuilder, ResolvedSelector, resolve_selector
from wharf.languages.filters.tree import (
    And,
    Expression,
    FilterOperator,
    Match,
    Not,
    Or,
    QuantifiedExpression,
    Quantifier,
    Selector,
    count_terms,
    has_quantifiers,
    iterate_matches,
)
from wharf.languages.patterns import MAX_UTF8_BYTES

MAX_PATTERNS: Final = 20
"""The number of regular expressions in one filter. Each may hold half a megabyte of memory."""
MAX_FILTER_INSTRUCTIONS: Final = 5_000
"""The instructions of all regular expressions of one filter. Limits the time of compiling them."""
MAX_UNMETERED_SEARCHES: Final = 20
"""Up to this number of terms with `contains`, they are not counted: each takes a tenth of a millisecond at most."""
TERMS_PER_STEP: Final = 4
"""The terms in the body of an `any` or `all` that take about as long as one step."""
MAX_UNCOUNTED_STEPS: Final = 200
"""A record whose values are so short that the terms of a filter take no more steps is tested without counting them."""
MAX_CACHE_WEIGHT: Final = 256
"""Limits the memory of cached filters. A filter weighs 1, plus 1 for each pattern and for every 200 characters."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A compiled filter.

    `accepts` returns whether a record matches. It raises `FilterEvaluationError` if the record lacks a value that the
    filter reads, and `FilterStepsExceeded` if the filter takes more than `MAX_STEPS` steps for the record.

    `accepts_within` does the same with a lower limit of steps. If `is_metered` is false, a record takes so few steps that
    they are not counted.
    """

    text: str
    tree: Expression
    accepts: Callable[[Any], bool]
    accepts_within: Callable[[Any, int], bool]
    is_metered: bool
    pattern_count: int


def compile_filter(text: str, subject: FilterSubject | type) -> Filter:
    """Return the compiled filter for records of one type, from the cache if possible. Raises `FilterError`."""
    subject = subject if isinstance(subject, FilterSubject) else get_filter_subject(subject)
    cached_filter = _CACHE.get(subject, text)
    if cached_filter is not None:
        return cached_filter
    tree = parse_filter(text)
    compiler = _Compiler(FilterErrorBuilder(text))
    compiled = compiler.compile(tree, subject)
    _CACHE.add(subject, compiled)
    return compiled


class _Cache:
    """The most recently used filters, up to `MAX_CACHE_WEIGHT`."""

    def __init__(self) -> None:
        self._filters: OrderedDict[tuple[FilterSubject, str], Filter] = OrderedDict()
        self._weight = 0

    def get(self, subject: FilterSubject, text: str) -> Filter | None:
        """Return the filter with this subject and text, and count this as its latest use.

        Return `None` if it is not cached.
        """
        cached_filter = self._filters.get((subject, text))
        if cached_filter is not None:
            self._filters.move_to_end((subject, text))
        return cached_filter

    def add(self, subject: FilterSubject, compiled: Filter) -> None:
        """Add a filter, and evict those that were not used for the longest time until the weight is within the limit."""
        self._filters[subject, compiled.text] = compiled
        self._weight += _count_weight(compiled)
        while self._weight > MAX_CACHE_WEIGHT:
            _, oldest = self._filters.popitem(last=False)
            self._weight -= _count_weight(oldest)


def _count_weight(compiled: Filter) -> int:
    return 1 + compiled.pattern_count + len(compiled.text) // 200


_CACHE: Final = _Cache()


class _Compiler:
    """Compiles one expression, counting its regular expressions and their instructions."""

    def __init__(self, errors: FilterErrorBuilder) -> None:
        self._errors = errors
        self._pattern_count = 0
        self._instruction_count = 0
        self._is_metered = False
        self._max_term_steps = 0
        """The steps that a term may take without being counted; 0 while terms are counted, or need not be."""
        self._costly_operators: list[FilterOperator] = []
        """The operators whose terms must not take more than `_max_term_steps`."""
        self._term_tests: dict[int, TermTest] = {}
        """The tests of terms by the identity of the term, because an expression may be compiled twice."""

    def compile(self, tree: Expression, subject: FilterSubject) -> Filter:
        """Return the compiled filter.

        If the steps of the expression are counted, it runs on a frame: a tuple with the record, the names that are bound
        and the steps that are left.
        """
        source = self._errors.source
        self._is_metered = _needs_meter(tree)
        accepts = self._compile_node(tree, NameScope(subject, is_framed=self._is_metered))
        if not self._is_metered:
            return Filter(source, tree, accepts, lambda record, _: accepts(record), False, self._pattern_count)

        def accepts_counted(record: Any, max_steps: int) -> bool:
            return accepts((record, None, None, [max_steps]))

        pattern_count = self._pattern_count
        accepts_short = None if has_quantifiers(tree) else self._compile_uncounted(tree, subject)
        if accepts_short is None:
            return Filter(
                source, tree, lambda record: accepts_counted(record, MAX_STEPS), accepts_counted, True, pattern_count
            )

        def accepts_any(record: Any) -> bool:
            try:
                return accepts_short(record)
            except _LongValue:
                return accepts_counted(record, MAX_STEPS)

        def accepts_within(record: Any, max_steps: int) -> bool:
            if max_steps < MAX_UNCOUNTED_STEPS:
                return accepts_counted(record, max_steps)
            try:
                return accepts_short(record)
            except _LongValue:
                return accepts_counted(record, max_steps)

        return Filter(source, tree, accepts_any, accepts_within, True, pattern_count)

    def _compile_uncounted(self, tree: Expression, subject: FilterSubject) -> Predicate | None:
        """Return a predicate of records that does not count steps, and raises `_LongValue` if they must be counted.

        Counting takes longer than most tests. The result is the same, because a long value is found before it is tested.
        Return `None` if the filter has so large a number of terms that a record could take too many steps anyway.
        """
        operators = [match.operator.positive for match in iterate_matches(tree)]
        searches, patterns = operators.count(FilterOperator.CONTAINS), operators.count(FilterOperator.MATCHES)
        self._costly_operators = [FilterOperator.MATCHES]
        if searches > MAX_UNMETERED_SEARCHES:
            self._costly_operators.append(FilterOperator.CONTAINS)
            patterns += searches
        self._is_metered, self._max_term_steps = False, MAX_UNCOUNTED_STEPS // patterns
        return self._compile_node(tree, NameScope(subject, is_framed=False)) if self._max_term_steps else None

    def _compile_node(self, node: Expression, scope: NameScope) -> Predicate:
        """Return the predicate of an expression. `scope` holds the names that selectors in it may begin with."""
        match node:
            case Match():
                return self._compile_match(node, scope)
            case Not(operand):
                return _negate(self._compile_node(operand, scope))
            case And(operands):
                return _require_all([self._compile_node(operand, scope) for operand in operands])
            case Or(operands):
                return _require_any([self._compile_node(operand, scope) for operand in operands])
            case QuantifiedExpression():
                return self._compile_quantified(node, scope)

    # -- terms ---------------------------------------------------------------------------------------------------

    def _compile_match(self, match: Match, scope: NameScope) -> Predicate:
        """Return the predicate of one term, such as `Status == "running"`: it reads the value and applies the
        operator's test.
        """
        resolved = resolve_selector(match.selector, scope, self._errors)
        operator = match.operator.positive
        known_term = self._term_tests.get(id(match))
        if operator is FilterOperator.MATCHES and known_term is None:
            self._count_pattern(match)
        when_missing = operator in (FilterOperator.IS_EMPTY, FilterOperator.IS_NIL)
        try:
            term = known_term or make_test(match, resolved.kind)
            if known_term is None:
                self._count_instructions(term.pattern_instructions, match)
                self._term_tests[id(match)] = term
            test = self._reject_null(term.test, match, resolved.kind)
        except OperatorMismatch as mismatch:
            if not (when_missing and resolved.is_key):
                offset = (
                    match.value.offset
                    if mismatch.is_value_mismatch and match.value is not None
                    else match.selector.offset
                )
                raise self._errors.make_type_error(offset, mismatch.reason) from None
            # For a missing key, `is empty` and `is nil` are valid whatever the kind of the map's values (reference 2.5).
            term = TermTest(self._make_key_test(match, resolved.kind, mismatch.reason))
            test = term.test
        is_negated = match.operator.is_negated
        if self._is_metered and term.cost_factor:
            return self._make_metered_term(
                match, resolved, test, term.cost_factor, result=when_missing is not is_negated
            )
        if self._max_term_steps and term.cost_factor and operator in self._costly_operators:
            result = when_missing is not is_negated
            return _make_uncounted_term(resolved, test, term.cost_factor, self._max_term_steps, result, is_negated)
        return _combine_read_and_test(resolved, test, when_missing=when_missing, is_negated=is_negated)

    def _make_metered_term(
        self, match: Match, resolved: ResolvedSelector, test: ValueTest, cost_factor: int, *, result: bool
    ) -> Predicate:
        """Return a predicate that counts the steps of a term before it tests the value.

        If the value is missing, the predicate returns `result`.
        """
        read, is_negated = resolved.read, match.operator.is_negated

        def is_accepted(frame: Frame) -> bool:
            value = read(frame)
            if value is MISSING:
                return result
            steps = frame[STEPS_SLOT]
            if type(value) is str and value.isascii():  # The usual case, without a call.
                steps[0] -= 1 + (len(value) * cost_factor >> COST_SHIFT)
            else:
                steps[0] -= count_value_steps(value, cost_factor)
            if steps[0] < 0:
                raise self._make_step_limit_error(f"{match.selector} {match.operator.value}", match.selector.offset)
            return test(value) is not is_negated

        return is_accepted

    def _count_instructions(self, instructions: int, match: Match) -> None:
        """Add the instructions of a pattern. Raises `FilterTypeError` if all patterns together have too many."""
        self._instruction_count += instructions
        if self._instruction_count > MAX_FILTER_INSTRUCTIONS:
            reason = f"the regular expressions compile to more than {MAX_FILTER_INSTRUCTIONS:,} instructions in total"
            raise self._errors.make_type_error(match.selector.offset, reason)

    def _count_pattern(self, match: Match) -> None:
        """Count one more regular expression. Raises `FilterTypeError` beyond `MAX_PATTERNS`."""
        self._pattern_count += 1
        if self._pattern_count > MAX_PATTERNS:
            reason = f"more than {MAX_PATTERNS} regular expressions"
            raise self._errors.make_type_error(match.selector.offset, reason)

    def _reject_null(self, test: ValueTest, match: Match, kind: ValueKind) -> ValueTest:
        """Return a test that raises `FilterEvaluationError` for a null in place of a value.

        For an untyped value it also raises that error if the value's type does not have the operator. Tests for which
        null is valid are returned unchanged.
        """
        if isinstance(kind, UntypedKind):
            return self._wrap_untyped_errors(test, match.selector)
        is_pointer = kind.is_nullable and not isinstance(kind, TimeKind | ListKind | MapKind) and kind.name != "bytes"
        if not is_pointer or match.operator.positive is FilterOperator.IS_NIL:
            return test

        def test_non_null(value: object) -> bool:
            """Return the result of the test, or raise an error of the record if the value is null."""
            return self._raise_null(match.selector) if value is None else test(value)

        return test_non_null

    def _wrap_untyped_errors(self, test: ValueTest, selector: Selector) -> ValueTest:
        """Return a test that raises `FilterEvaluationError` if an untyped value has a type without the operator."""

        def test_untyped(value: object) -> bool:
            """Return the result of the test, or raise an error of the record if the value's type does not have the
            operator.
            """
            try:
                return test(value)
            except untyped.UnsupportedOperand as error:
                raise self._errors.make_evaluation_error(selector.offset, str(error)) from None

        return test_untyped

    def _make_key_test(self, match: Match, kind: ValueKind, reason: str) -> ValueTest:
        """Return the test of `is empty` or `is nil` for a key whose values do not have the operator, if the key exists.

        A record is not empty, because it has fields (the specification selects `TaskGroups.<group>` as a map). For any
        other kind the test raises `FilterEvaluationError` with the given reason.
        """
        if isinstance(kind, StructKind) and match.operator.positive is FilterOperator.IS_EMPTY:
            return (lambda value: value is None) if kind.is_nullable else (lambda _: False)

        def raise_mismatch(_: object) -> NoReturn:
            raise self._errors.make_evaluation_error(match.selector.offset, reason, has_location=True)

        return raise_mismatch

    def _raise_null(self, selector: Selector) -> NoReturn:
        """Raise the error for a null where the selected value of a record is needed."""
        last = len(selector.parts) - 1
        reason = f"{selector.path}: at part {last}, invalid value kind: invalid"
        raise self._errors.make_unreadable_selector_error(selector, last, reason)

    # -- collections ---------------------------------------------------------------------------------------------

    def _compile_quantified(self, node: QuantifiedExpression, scope: NameScope) -> Predicate:
        """Return the predicate of an `any` or `all`: it runs the body for each member in a frame of its own, until the
        result is known.
        """
        resolved = resolve_selector(node.selector, scope, self._errors)
        names, members = self._bind_names(node, resolved)
        body = self._compile_node(node.body, scope.add_names(names))
        is_any = node.quantifier is Quantifier.ANY
        read = resolved.read
        steps_per_run = 1 + count_terms(node.body) // TERMS_PER_STEP

        def holds(frame: Frame) -> bool:
            """Return whether the body holds for some member (`any`) or for every member (`all`) of the selected value."""
            value = read(frame)
            if value is MISSING:
                return not is_any
            steps = frame[STEPS_SLOT]
            for key, member in members(value):
                steps[0] -= steps_per_run
                if steps[0] < 0:
                    raise self._make_step_limit_error(f"{node.quantifier.value} {node.selector}", node.offset)
                if body((frame, key, member, steps)) is is_any:
                    return is_any
            return not is_any

        return holds

    def _bind_names(
        self, node: QuantifiedExpression, resolved: ResolvedSelector
    ) -> tuple[dict[str, BoundName], Callable[[Any], Iterable[tuple[Any, Any]]]]:
        """Return two things for an `any` or `all`: the names that its body can use, and a function that iterates over
        the members.

        Raises `FilterTypeError` if the selected value is neither a list nor a map.
        """
        if node.key is not None and node.key == node.value:
            raise self._errors.make_type_error(node.offset, f'the name "{node.key}" is bound twice')
        kind = resolved.kind
        if resolved.is_key and not isinstance(kind, ListKind | MapKind):
            # The key may be missing, which is valid for `any` and `all` whatever the map's values are (reference 2.5).
            kind = UntypedKind()
        match kind:
            case ListKind(item=item):
                return _map_bound_names(
                    node, member=BoundName(VALUE_SLOT, item), key=IntegerKind(minimum=0), value=item
                ), _walk_list
            case MapKind(value=value, has_text_keys=True):
                return _map_bound_names(
                    node, member=BoundName(KEY_SLOT, TextKind()), key=TextKind(), value=value
                ), _walk_map
            case UntypedKind():
                names = _map_bound_names(node, member=BoundName(VALUE_SLOT, kind), key=kind, value=kind)
                return names, self._make_untyped_walk(node)
        reason = f"{node.selector} is not a list or a map, but {kind.name}"
        raise self._errors.make_type_error(node.selector.offset, reason)

    def _make_untyped_walk(self, node: QuantifiedExpression) -> Callable[[object], Iterable[tuple[object, object]]]:
        """Return a function that iterates over the members of an untyped list or map.

        It raises `FilterEvaluationError` for other types.
        """
        selector = node.selector
        binds_keys_only = node.member is not None

        def walk(value: object) -> Iterable[tuple[object, object]]:
            """Return pairs of key and member.

            If only one name is bound to a map's members, both parts of a pair are the key.
            """
            try:
                members = untyped.list_members(value, str(selector))
            except untyped.UnsupportedOperand as error:
                raise self._errors.make_evaluation_error(selector.offset, str(error)) from None
            is_map = isinstance(value, Mapping)
            return [(key, key) for key, _ in members] if binds_keys_only and is_map else members

        return walk

    def _make_step_limit_error(self, term: str, offset: int) -> FilterError:
        """Return the error for a record that takes too many steps. `term`: the beginning of the term that was evaluated."""
        return self._errors.make_step_limit_error(offset, f"{term}: more than {MAX_STEPS} steps for one record")


def _needs_meter(tree: Expression) -> bool:
    """Return whether the steps for a record must be counted, because there may be thousands."""
    if has_quantifiers(tree):
        return True
    matches = list(iterate_matches(tree))
    patterns = sum(match.operator.positive is FilterOperator.MATCHES for match in matches)
    searches = sum(match.operator.positive is FilterOperator.CONTAINS for match in matches)
    return patterns > 0 or searches > MAX_UNMETERED_SEARCHES


class _LongValue(Exception):
    """The test of a value takes such a number of steps that they must be counted."""


def _make_uncounted_term(
    resolved: ResolvedSelector, test: ValueTest, cost_factor: int, max_steps: int, result: bool, is_negated: bool
) -> Predicate:
    """Return a predicate of a term. It raises `_LongValue` if the test of the value may take more than `max_steps` steps.

    If the value is missing, the predicate returns `result`.
    """
    read = resolved.read
    max_chars = (max_steps - 1 << COST_SHIFT) // (cost_factor * MAX_UTF8_BYTES)

    def is_accepted(record: Any) -> bool:
        value = read(record)
        if type(value) is str:  # The usual case, without a call.
            if len(value) > max_chars:
                raise _LongValue
        elif value is MISSING:
            return result
        elif count_value_steps(value, cost_factor) > max_steps:
            raise _LongValue
        return test(value) is not is_negated

    return is_accepted


def _map_bound_names(
    node: QuantifiedExpression, *, member: BoundName, key: ValueKind, value: ValueKind
) -> dict[str, BoundName]:
    """Return the names that an `any` or `all` binds, with what each stands for: the single name, or key and value.

    A name written as `_` is left out.
    """
    if node.member is not None:
        return {node.member: member}
    bindings = ((node.key, BoundName(KEY_SLOT, key)), (node.value, BoundName(VALUE_SLOT, value)))
    return {name: bound for name, bound in bindings if name is not None}


def _walk_list(items: Iterable[object] | None) -> Iterable[tuple[int, object]]:
    return enumerate(items or ())


def _walk_map(values: dict[str, object] | None) -> Iterable[tuple[str, object]]:
    return (values or {}).items()


# -- closures: one for each case, so that no decision known at compile time is repeated for each record ---------------


def _combine_read_and_test(
    resolved: ResolvedSelector, test: ValueTest, *, when_missing: bool, is_negated: bool
) -> Predicate:
    """Return a predicate that reads a value and tests it.

    If the value is missing, the predicate returns `when_missing`, or its opposite if the operator is negated.
    """
    read = resolved.read
    if not resolved.can_be_missing:
        return (lambda frame: not test(read(frame))) if is_negated else (lambda frame: test(read(frame)))
    result = when_missing is not is_negated

    def is_accepted(frame: Frame) -> bool:
        value = read(frame)
        return result if value is MISSING else test(value) is not is_negated

    return is_accepted


def _negate(predicate: Predicate) -> Predicate:
    return lambda frame: not predicate(frame)


def _require_all(predicates: list[Predicate]) -> Predicate:
    """Return a predicate that holds if all of these hold. Two and three of them, the usual case, need no loop."""
    if len(predicates) == 2:
        first, second = predicates
        return lambda frame: first(frame) and second(frame)
    if len(predicates) == 3:
        first, second, third = predicates
        return lambda frame: first(frame) and second(frame) and third(frame)

    def holds(frame: Frame) -> bool:
        for predicate in predicates:  # `all` with a generator takes twice as long.  # noqa: SIM110
            if not predicate(frame):
                return False
        return True

    return holds


def _require_any(predicates: list[Predicate]) -> Predicate:
    """Return a predicate that holds if any of these holds. Two of them, the usual case, need no loop."""
    if len(predicates) == 2:
        first, second = predicates
        return lambda frame: first(frame) or second(frame)

    def holds(frame: Frame) -> bool:
        for predicate in predicates:  # noqa: SIM110
            if predicate(frame):
                return True
        return False

    return holds
