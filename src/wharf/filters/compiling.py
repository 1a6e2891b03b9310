"""From text to a function of a record: parsed, checked against the type, and made of closures.

Nothing is looked up or decided for each record that could be decided once. What is compiled is kept, bounded by what
it may weigh: an expression's patterns may hold memory.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from wharf.filters import untyped
from wharf.filters.errors import FilterError
from wharf.filters.kinds import Integer, Kind, List, Map, Struct, Subject, Text, Time, Untyped, subject_of
from wharf.filters.operators import Misfit, Test, make_test
from wharf.filters.parser import parse
from wharf.filters.reading import MISSING, Places, Reading, resolve
from wharf.filters.scope import KEY, STEPS, STEPS_MAX, VALUE, Bound, Frame, Predicate, Scope
from wharf.filters.tree import (
    And,
    Collection,
    Expression,
    Match,
    Not,
    Operator,
    Or,
    Quantifier,
    Selector,
    has_collections,
)

PATTERNS_MAX: Final = 20
# A filter weighs one for itself, one for each pattern (each may hold half a megabyte), one for 200 characters.
CACHE_WEIGHT_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Filter:
    """A compiled expression. `accepts` says whether a record is in; it raises NotReadable for one that can not tell."""

    text: str
    tree: Expression
    accepts: Callable[[Any], bool]
    patterns: int


def compile_filter(text: str, subject: Subject | type) -> Filter:
    """The filter of an expression over records of one type, or a FilterError. Compiled ones are kept."""
    subject = subject if isinstance(subject, Subject) else subject_of(subject)
    kept = _CACHE.get(subject, text)
    if kept is not None:
        return kept
    tree = parse(text)
    compiler = _Compiler(Places(text))
    made = Filter(text, tree, compiler.compile(tree, subject), compiler.patterns)
    _CACHE.keep(subject, made)
    return made


class _Cache:
    """The filters that were used last, up to a weight."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Subject, str], Filter] = OrderedDict()
        self._weight = 0

    def get(self, subject: Subject, text: str) -> Filter | None:
        kept = self._kept.get((subject, text))
        if kept is not None:
            self._kept.move_to_end((subject, text))
        return kept

    def keep(self, subject: Subject, made: Filter) -> None:
        self._kept[subject, made.text] = made
        self._weight += _weight(made)
        while self._weight > CACHE_WEIGHT_MAX:
            _, oldest = self._kept.popitem(last=False)
            self._weight -= _weight(oldest)


def _weight(made: Filter) -> int:
    return 1 + made.patterns + len(made.text) // 200


_CACHE: Final = _Cache()


class _Compiler:
    def __init__(self, places: Places) -> None:
        self._places = places
        self.patterns = 0

    def compile(self, tree: Expression, subject: Subject) -> Predicate:
        if not has_collections(tree):
            return self._predicate(tree, Scope(subject, framed=False))
        accepts = self._predicate(tree, Scope(subject, framed=True))
        return lambda record: accepts((record, None, None, [STEPS_MAX]))

    def _predicate(self, node: Expression, scope: Scope) -> Predicate:
        match node:
            case Match():
                return self._match(node, scope)
            case Not(operand):
                return _negated(self._predicate(operand, scope))
            case And(operands):
                return _all_of([self._predicate(operand, scope) for operand in operands])
            case Or(operands):
                return _any_of([self._predicate(operand, scope) for operand in operands])
            case Collection():
                return self._collection(node, scope)

    # -- terms ---------------------------------------------------------------------------------------------------

    def _match(self, match: Match, scope: Scope) -> Predicate:
        reading = resolve(match.selector, scope, self._places)
        operator = match.operator.positive
        if operator is Operator.MATCHES:
            self._count_pattern(match)
        when_missing = operator in (Operator.IS_EMPTY, Operator.IS_NIL)
        try:
            test = self._guarded(make_test(match, reading.kind), match, reading.kind)
        except Misfit as misfit:
            if not (when_missing and reading.is_key):
                at = match.value.at if misfit.is_value and match.value is not None else match.selector.at
                raise self._places.does_not_fit(at, misfit.reason) from None
            # A key may be asked for whatever its values are, as long as it is not there (reference 2.5).
            test = self._of_a_key_only(match, reading.kind, misfit.reason)
        return _compose(reading, test, when_missing=when_missing, negated=match.operator.is_negated)

    def _count_pattern(self, match: Match) -> None:
        self.patterns += 1
        if self.patterns > PATTERNS_MAX:
            reason = f"more than {PATTERNS_MAX} regular expressions"
            raise self._places.does_not_fit(match.selector.at, reason)

    def _guarded(self, test: Test, match: Match, kind: Kind) -> Test:
        """What only the value itself can tell becomes an error of the record."""
        if isinstance(kind, Untyped):
            return self._suitable(test, match.selector)
        is_pointer = kind.may_be_null and not isinstance(kind, Time | List | Map) and kind.name != "bytes"
        if not is_pointer or match.operator.positive is Operator.IS_NIL:
            return test

        def test_held(value: object) -> bool:
            return self._null(match.selector) if value is None else test(value)

        return test_held

    def _suitable(self, test: Test, selector: Selector) -> Test:
        def test_suitable(value: object) -> bool:
            try:
                return test(value)
            except untyped.Unsuitable as problem:
                raise self._places.not_readable(selector.at, str(problem)) from None

        return test_suitable

    def _of_a_key_only(self, match: Match, kind: Kind, reason: str) -> Test:
        """Of a key that is there. A record has fields, so it is not empty (the specification selects
        `TaskGroups.<group>` as a map); of anything else it cannot be said.
        """
        if isinstance(kind, Struct) and match.operator.positive is Operator.IS_EMPTY:
            return (lambda value: value is None) if kind.may_be_null else (lambda _: False)

        def has_nothing(_: object) -> NoReturn:
            raise self._places.not_readable(match.selector.at, reason, is_placed=True)

        return has_nothing

    def _null(self, selector: Selector) -> NoReturn:
        last = len(selector.parts) - 1
        reason = f"{selector.path}: at part {last}, invalid value kind: invalid"
        raise self._places.unread(selector, last, reason)

    # -- collections ---------------------------------------------------------------------------------------------

    def _collection(self, node: Collection, scope: Scope) -> Predicate:
        reading = resolve(node.selector, scope, self._places)
        names, members = self._bind(node, reading)
        body = self._predicate(node.body, scope.with_names(names))
        is_any = node.quantifier is Quantifier.ANY
        read = reading.read

        def holds(frame: Frame) -> bool:
            value = read(frame)
            if value is MISSING:
                return not is_any
            steps = frame[STEPS]
            for key, member in members(value):
                if not steps[0]:
                    raise self._too_long(node)
                steps[0] -= 1
                if body((frame, key, member, steps)) is is_any:
                    return is_any
            return not is_any

        return holds

    def _bind(
        self, node: Collection, reading: Reading
    ) -> tuple[dict[str, Bound], Callable[[Any], Iterable[tuple[Any, Any]]]]:
        """The names that the body knows, and how to walk over what is collected."""
        if node.key is not None and node.key == node.value:
            raise self._places.does_not_fit(node.at, f'the name "{node.key}" is given twice')
        kind = reading.kind
        if reading.is_key and not isinstance(kind, List | Map):
            # A key that a map does not have is not present, whatever its values are (reference 2.5).
            kind = Untyped()
        match kind:
            case List(item=item):
                return _names(node, member=Bound(VALUE, item), key=Integer(least=0), value=item), _walk_list
            case Map(value=value, has_text_keys=True):
                return _names(node, member=Bound(KEY, Text()), key=Text(), value=value), _walk_map
            case Untyped():
                names = _names(node, member=Bound(VALUE, kind), key=kind, value=kind)
                return names, self._walk_untyped(node)
        reason = f"{node.selector} is not a list or a map, but {kind.name}"
        raise self._places.does_not_fit(node.selector.at, reason)

    def _walk_untyped(self, node: Collection) -> Callable[[object], Iterable[tuple[object, object]]]:
        selector = node.selector
        takes_keys = node.member is not None

        def walk(value: object) -> Iterable[tuple[object, object]]:
            try:
                members = untyped.members(value, str(selector))
            except untyped.Unsuitable as problem:
                raise self._places.not_readable(selector.at, str(problem)) from None
            is_map = isinstance(value, Mapping)
            return [(key, key) for key, _ in members] if takes_keys and is_map else members

        return walk

    def _too_long(self, node: Collection) -> FilterError:
        reason = f"{node.quantifier.value} {node.selector}: more than {STEPS_MAX} steps for one record"
        return self._places.not_readable(node.at, reason)


def _names(node: Collection, *, member: Bound, key: Kind, value: Kind) -> dict[str, Bound]:
    if node.member is not None:
        return {node.member: member}
    given = ((node.key, Bound(KEY, key)), (node.value, Bound(VALUE, value)))
    return {name: bound for name, bound in given if name is not None}


def _walk_list(items: Iterable[object] | None) -> Iterable[tuple[int, object]]:
    return enumerate(items or ())


def _walk_map(values: dict[str, object] | None) -> Iterable[tuple[str, object]]:
    return (values or {}).items()


# -- closures, each for its case, so that none decides for each record what is known before ---------------------------


def _compose(reading: Reading, test: Test, *, when_missing: bool, negated: bool) -> Predicate:
    read = reading.read
    if not reading.may_miss:
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
