"""From text to a function of a record: parsed, checked against the type, and made of closures.

Nothing is looked up or decided for each record that could be decided once. What is compiled is kept, bounded by what
it may weigh: an expression's patterns may hold memory.
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
from wharf.languages.filters.operators import OperatorMismatch, ValueTest, make_test
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
    has_quantifiers,
)

MAX_PATTERNS: Final = 20
# A filter weighs one for itself, one for each pattern (each may hold half a megabyte), one for 200 characters.
MAX_CACHE_WEIGHT: Final = 256


@dataclass(frozen=True, slots=True)
class Filter:
    """A compiled expression. `accepts` says whether a record is in; it raises NotReadable for one that can not tell."""

    text: str
    tree: Expression
    accepts: Callable[[Any], bool]
    pattern_count: int


def compile_filter(text: str, subject: FilterSubject | type) -> Filter:
    """The filter of an expression over records of one type, or a FilterError. Compiled ones are kept."""
    subject = subject if isinstance(subject, FilterSubject) else get_filter_subject(subject)
    kept = _CACHE.get(subject, text)
    if kept is not None:
        return kept
    tree = parse_filter(text)
    compiler = _Compiler(FilterErrorBuilder(text))
    made = Filter(text, tree, compiler.compile(tree, subject), compiler.patterns)
    _CACHE.keep(subject, made)
    return made


class _Cache:
    """The filters that were used last, up to a weight."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[FilterSubject, str], Filter] = OrderedDict()
        self._weight = 0

    def get(self, subject: FilterSubject, text: str) -> Filter | None:
        kept = self._kept.get((subject, text))
        if kept is not None:
            self._kept.move_to_end((subject, text))
        return kept

    def keep(self, subject: FilterSubject, made: Filter) -> None:
        self._kept[subject, made.text] = made
        self._weight += _weight(made)
        while self._weight > MAX_CACHE_WEIGHT:
            _, oldest = self._kept.popitem(last=False)
            self._weight -= _weight(oldest)


def _weight(made: Filter) -> int:
    return 1 + made.pattern_count + len(made.text) // 200


_CACHE: Final = _Cache()


class _Compiler:
    def __init__(self, places: FilterErrorBuilder) -> None:
        self._places = places
        self.patterns = 0

    def compile(self, tree: Expression, subject: FilterSubject) -> Predicate:
        if not has_quantifiers(tree):
            return self._predicate(tree, NameScope(subject, is_framed=False))
        accepts = self._predicate(tree, NameScope(subject, is_framed=True))
        return lambda record: accepts((record, None, None, [MAX_STEPS]))

    def _predicate(self, node: Expression, scope: NameScope) -> Predicate:
        match node:
            case Match():
                return self._match(node, scope)
            case Not(operand):
                return _negated(self._predicate(operand, scope))
            case And(operands):
                return _all_of([self._predicate(operand, scope) for operand in operands])
            case Or(operands):
                return _any_of([self._predicate(operand, scope) for operand in operands])
            case QuantifiedExpression():
                return self._collection(node, scope)

    # -- terms ---------------------------------------------------------------------------------------------------

    def _match(self, match: Match, scope: NameScope) -> Predicate:
        reading = resolve_selector(match.selector, scope, self._places)
        operator = match.operator.positive
        if operator is FilterOperator.MATCHES:
            self._count_pattern(match)
        when_missing = operator in (FilterOperator.IS_EMPTY, FilterOperator.IS_NIL)
        try:
            test = self._guarded(make_test(match, reading.kind), match, reading.kind)
        except OperatorMismatch as misfit:
            if not (when_missing and reading.is_key):
                at = (
                    match.value.offset
                    if misfit.is_value_mismatch and match.value is not None
                    else match.selector.offset
                )
                raise self._places.make_type_error(at, misfit.reason) from None
            # A key may be asked for whatever its values are, as long as it is not there (reference 2.5).
            test = self._of_a_key_only(match, reading.kind, misfit.reason)
        return _compose(reading, test, when_missing=when_missing, negated=match.operator.is_negated)

    def _count_pattern(self, match: Match) -> None:
        self.patterns += 1
        if self.patterns > MAX_PATTERNS:
            reason = f"more than {MAX_PATTERNS} regular expressions"
            raise self._places.make_type_error(match.selector.offset, reason)

    def _guarded(self, test: ValueTest, match: Match, kind: ValueKind) -> ValueTest:
        """What only the value itself can tell becomes an error of the record."""
        if isinstance(kind, UntypedKind):
            return self._suitable(test, match.selector)
        is_pointer = kind.is_nullable and not isinstance(kind, TimeKind | ListKind | MapKind) and kind.name != "bytes"
        if not is_pointer or match.operator.positive is FilterOperator.IS_NIL:
            return test

        def test_held(value: object) -> bool:
            return self._null(match.selector) if value is None else test(value)

        return test_held

    def _suitable(self, test: ValueTest, selector: Selector) -> ValueTest:
        def test_suitable(value: object) -> bool:
            try:
                return test(value)
            except untyped.UnsupportedOperand as problem:
                raise self._places.make_evaluation_error(selector.offset, str(problem)) from None

        return test_suitable

    def _of_a_key_only(self, match: Match, kind: ValueKind, reason: str) -> ValueTest:
        """Of a key that is there. A record has fields, so it is not empty (the specification selects
        `TaskGroups.<group>` as a map); of anything else it cannot be said.
        """
        if isinstance(kind, StructKind) and match.operator.positive is FilterOperator.IS_EMPTY:
            return (lambda value: value is None) if kind.is_nullable else (lambda _: False)

        def has_nothing(_: object) -> NoReturn:
            raise self._places.make_evaluation_error(match.selector.offset, reason, has_location=True)

        return has_nothing

    def _null(self, selector: Selector) -> NoReturn:
        last = len(selector.parts) - 1
        reason = f"{selector.path}: at part {last}, invalid value kind: invalid"
        raise self._places.make_unreadable_selector_error(selector, last, reason)

    # -- collections ---------------------------------------------------------------------------------------------

    def _collection(self, node: QuantifiedExpression, scope: NameScope) -> Predicate:
        reading = resolve_selector(node.selector, scope, self._places)
        names, members = self._bind(node, reading)
        body = self._predicate(node.body, scope.add_names(names))
        is_any = node.quantifier is Quantifier.ANY
        read = reading.read

        def holds(frame: Frame) -> bool:
            value = read(frame)
            if value is MISSING:
                return not is_any
            steps = frame[STEPS_SLOT]
            for key, member in members(value):
                if not steps[0]:
                    raise self._too_long(node)
                steps[0] -= 1
                if body((frame, key, member, steps)) is is_any:
                    return is_any
            return not is_any

        return holds

    def _bind(
        self, node: QuantifiedExpression, reading: ResolvedSelector
    ) -> tuple[dict[str, BoundName], Callable[[Any], Iterable[tuple[Any, Any]]]]:
        """The names that the body knows, and how to walk over what is collected."""
        if node.key is not None and node.key == node.value:
            raise self._places.make_type_error(node.offset, f'the name "{node.key}" is given twice')
        kind = reading.kind
        if reading.is_key and not isinstance(kind, ListKind | MapKind):
            # A key that a map does not have is not present, whatever its values are (reference 2.5).
            kind = UntypedKind()
        match kind:
            case ListKind(item=item):
                return _names(
                    node, member=BoundName(VALUE_SLOT, item), key=IntegerKind(minimum=0), value=item
                ), _walk_list
            case MapKind(value=value, has_text_keys=True):
                return _names(node, member=BoundName(KEY_SLOT, TextKind()), key=TextKind(), value=value), _walk_map
            case UntypedKind():
                names = _names(node, member=BoundName(VALUE_SLOT, kind), key=kind, value=kind)
                return names, self._walk_untyped(node)
        reason = f"{node.selector} is not a list or a map, but {kind.name}"
        raise self._places.make_type_error(node.selector.offset, reason)

    def _walk_untyped(self, node: QuantifiedExpression) -> Callable[[object], Iterable[tuple[object, object]]]:
        selector = node.selector
        takes_keys = node.member is not None

        def walk(value: object) -> Iterable[tuple[object, object]]:
            try:
                members = untyped.list_members(value, str(selector))
            except untyped.UnsupportedOperand as problem:
                raise self._places.make_evaluation_error(selector.offset, str(problem)) from None
            is_map = isinstance(value, Mapping)
            return [(key, key) for key, _ in members] if takes_keys and is_map else members

        return walk

    def _too_long(self, node: QuantifiedExpression) -> FilterError:
        reason = f"{node.quantifier.value} {node.selector}: more than {MAX_STEPS} steps for one record"
        return self._places.make_evaluation_error(node.offset, reason)


def _names(node: QuantifiedExpression, *, member: BoundName, key: ValueKind, value: ValueKind) -> dict[str, BoundName]:
    if node.member is not None:
        return {node.member: member}
    given = ((node.key, BoundName(KEY_SLOT, key)), (node.value, BoundName(VALUE_SLOT, value)))
    return {name: bound for name, bound in given if name is not None}


def _walk_list(items: Iterable[object] | None) -> Iterable[tuple[int, object]]:
    return enumerate(items or ())


def _walk_map(values: dict[str, object] | None) -> Iterable[tuple[str, object]]:
    return (values or {}).items()


# -- closures, each for its case, so that none decides for each record what is known before ---------------------------


def _compose(reading: ResolvedSelector, test: ValueTest, *, when_missing: bool, negated: bool) -> Predicate:
    read = reading.read
    if not reading.can_be_missing:
        return (lambda frame: not test(read(frame))) if negated else (lambda frame: test(read(frame)))
    result = when_missing is not negated

    def decide(frame: Frame) -> bool:
        value = read(frame)
        return result if value is MISSING else test(value) is not negated

    return decide


def _negated(predicate: Predicate) -> Predicate:
    return lambda frame: not predicate(frame)


def _all_of(predicates: list[Predicate]) -> Predicate:
    if len(predicates) == 2:
        first, second = predicates
        return lambda frame: first(frame) and second(frame)
    if len(predicates) == 3:
        first, second, third = predicates
        return lambda frame: first(frame) and second(frame) and third(frame)

    def hold(frame: Frame) -> bool:
        for predicate in predicates:  # A generator would cost as much again.  # noqa: SIM110
            if not predicate(frame):
                return False
        return True

    return hold


def _any_of(predicates: list[Predicate]) -> Predicate:
    if len(predicates) == 2:
        first, second = predicates
        return lambda frame: first(frame) or second(frame)

    def hold(frame: Frame) -> bool:
        for predicate in predicates:  # noqa: SIM110
            if predicate(frame):
                return True
        return False

    return hold
