"""Name lookup in filters: the fields of the record, and the names bound by the `any` and `all` around a term.

A filter without `any` and `all` runs on the record itself. Otherwise it runs on a frame: a tuple of the outer frame, the
bound key, the bound value and the remaining steps for this record. The outermost frame holds the record instead of an
outer frame. A name is therefore a fixed number of frames away, which is known when the filter is compiled.
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

MAX_STEPS: Final = 100_000
"""The steps that a filter may take for one record, of about a microsecond each. Nested `any` over long lists, and regular
expressions over long texts, would run for hours.

A body of `any` or `all` takes one step each time it runs, and one more for every four terms in it. A term with `contains`
or `matches` takes one step, and more for long values."""

Frame: TypeAlias = Any  # A record, or the tuple described in the module docstring.
Predicate: TypeAlias = Callable[[Frame], bool]


@dataclass(frozen=True, slots=True)
class BoundName:
    """A name that `any` or `all` binds to the key or the value of the current member."""

    slot: int
    kind: ValueKind


class NameScope:
    """The names that can be used at one position of an expression."""

    def __init__(
        self, subject: FilterSubject, bound_names: tuple[dict[str, BoundName], ...] = (), *, is_framed: bool
    ) -> None:
        self._subject = subject
        self._bound_names = bound_names  # One dict for each `any` or `all` around this position, the outermost first.
        self._is_framed = is_framed

    def add_names(self, names: dict[str, BoundName]) -> "NameScope":
        """Return the scope inside an `any` or `all` that binds these names."""
        return NameScope(self._subject, (*self._bound_names, names), is_framed=True)

    @property
    def subject_name(self) -> str:
        return self._subject.name

    def list_names(self) -> Iterable[str]:
        """Return every name that a selector may begin with."""
        return dict.fromkeys([name for names in self._bound_names for name in names] + list(self._subject.fields))

    def find_field(self, name: str) -> FilterField | None:
        """Return the kind of a name and the function that reads its value from a record or frame; `None` if the name is
        unknown.

        The innermost `any` or `all` that binds the name is used; otherwise the name is a field of the record.
        """
        for hops, names in enumerate(reversed(self._bound_names)):
            if name in names:
                return FilterField(names[name].kind, _make_frame_reader(hops, names[name].slot))
        field = self._subject.fields.get(name)
        if field is None or not self._is_framed:
            return field
        return FilterField(field.kind, _chain_reads(_make_frame_reader(len(self._bound_names), OUTER_SLOT), field.read))


def _make_frame_reader(hops: int, slot: int) -> ReadFunction:
    """Return a function that reads a slot of the frame that is `hops` frames further out than the current one."""
    if hops == 0:
        return itemgetter(slot)
    if hops == 1:
        return lambda frame: frame[OUTER_SLOT][slot]

    def read_slot(frame: Frame) -> object:
        for _ in range(hops):
            frame = frame[OUTER_SLOT]
        return frame[slot]

    return read_slot


def _chain_reads(read_slot: ReadFunction, read: ReadFunction) -> ReadFunction:
    return lambda frame: read(read_slot(frame))
