"""Where names are looked up: the fields of the record, and the names that collections around a term have bound.

A filter without collections is run on the record itself. One with collections is run on a frame, a tuple of the frame
around it, the key and value that are bound, and the steps that are left for this record; the outermost frame holds the
record in the place of a frame around it. So a name is a fixed number of hops away, known when the filter is compiled.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, TypeAlias

from wharf.languages.filters.kinds import FilterField, FilterSubject, ReadFunction, ValueKind

OUTER_SLOT: Final = 0
KEY_SLOT: Final = 1
VALUE_SLOT: Final = 2
STEPS_SLOT: Final = 3

# How often the bodies of collections are run for one record: nested ones over long lists would take for ever.
MAX_STEPS: Final = 100_000

Frame: TypeAlias = Any  # A record, or the tuple that is told above.
Predicate: TypeAlias = Callable[[Frame], bool]


@dataclass(frozen=True, slots=True)
class BoundName:
    """A name that a collection gives to its key or its value."""

    slot: int
    kind: ValueKind


class NameScope:
    """What is in reach at one place of an expression."""

    def __init__(
        self, subject: FilterSubject, bound: tuple[dict[str, BoundName], ...] = (), *, is_framed: bool
    ) -> None:
        self._subject = subject
        self._bound = bound  # One for each collection around, the outermost first.
        self._framed = is_framed

    def add_names(self, names: dict[str, BoundName]) -> "NameScope":
        return NameScope(self._subject, (*self._bound, names), is_framed=True)

    @property
    def subject_name(self) -> str:
        return self._subject.name

    def list_names(self) -> Iterable[str]:
        """All that a selector may begin with."""
        return dict.fromkeys([name for names in self._bound for name in names] + list(self._subject.fields))

    def find_field(self, name: str) -> FilterField | None:
        """The innermost thing of that name; what it is read from is the frame."""
        for hops, names in enumerate(reversed(self._bound)):
            if name in names:
                return FilterField(names[name].kind, _reach(hops, names[name].slot))
        field = self._subject.fields.get(name)
        if field is None or not self._framed:
            return field
        return FilterField(field.kind, _read_from(_reach(len(self._bound), OUTER_SLOT), field.read))


def _reach(hops: int, slot: int) -> ReadFunction:
    if hops == 0:
        return itemgetter(slot)
    if hops == 1:
        return lambda frame: frame[OUTER_SLOT][slot]

    def reach(frame: Frame) -> object:
        for _ in range(hops):
            frame = frame[OUTER_SLOT]
        return frame[slot]

    return reach


def _read_from(reach: ReadFunction, read: ReadFunction) -> ReadFunction:
    return lambda frame: read(reach(frame))
