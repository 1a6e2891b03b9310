"""All selectors of a type, for documents: how each is written, what it holds, which operators it has."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from wharf.filters.kinds import Field, Kind, List, Map, Struct, Subject, Text, Untyped, subject_of
from wharf.filters.operators import operators_of


@dataclass(frozen=True, slots=True)
class SelectorInfo:
    """`<key>` and `<index>` stand for a key of a map and an index of a list. `values`: those of an enum."""

    selector: str
    kind: str
    operators: tuple[str, ...]
    values: tuple[str, ...] = ()


def selectors(subject: Subject | type) -> tuple[SelectorInfo, ...]:
    """Every selector of a type, in the order of its fields. A type inside itself is not followed again."""
    subject = subject if isinstance(subject, Subject) else subject_of(subject)
    return tuple(_of_fields("", subject.fields, ()))


def _of_fields(prefix: str, fields: Mapping[str, Field], around: tuple[type, ...]) -> Iterator[SelectorInfo]:
    for name, field in fields.items():
        yield from _of_kind(f"{prefix}{name}", field.kind, around)


def _of_kind(selector: str, kind: Kind, around: tuple[type, ...]) -> Iterator[SelectorInfo]:
    operators = tuple(operator.value for operator in operators_of(kind))
    yield SelectorInfo(selector, kind.name, operators, kind.values if isinstance(kind, Text) else ())
    match kind:
        case Struct(type=record) if record not in around:
            yield from _of_fields(f"{selector}.", kind.fields, (*around, record))
        case List(item=item, has_order=True):
            yield from _of_kind(f"{selector}.<index>", item, around)
        case Map(value=value, has_text_keys=True):
            yield from _of_kind(f"{selector}.<key>", value, around)
        case Untyped() if not selector.endswith(".<key>"):
            yield from _of_kind(f"{selector}.<key>", kind, around)
        case _:
            pass
