"""The record that the reference's table of cases is tested with, extended by further kinds of fields."""

import datetime
import enum
from typing import Annotated

import msgspec

from wharf.languages.filters import Filter, compile_filter

Unsigned = Annotated[int, msgspec.Meta(ge=0)]


ANYTHING: dict[str, object] = {
    "image": "redis:7",
    "port": 6379,
    "ratio": 0.5,
    "on": True,
    "null": None,
    "args": ["-v", 2, ["in"]],
    "holed": ["a", None],
    "deep": {"key": {"x": 1}},
    "empty": [],
}


class Colour(enum.StrEnum):
    BLUE = "blue"
    RED = "red"


class Mood(enum.Enum):
    CALM = "calm"


class Sub(msgspec.Struct, frozen=True, rename="pascal"):
    """A record in a list of `Datum`."""

    name: str = ""
    port: int = 0
    tags: tuple[str, ...] | None = None


class Datum(msgspec.Struct, frozen=True, rename="pascal"):
    """A record with a field of each kind."""

    id: str = msgspec.field(default="abc-1", name="ID")
    name: str = "web"
    n: int = 50
    u: Unsigned = 7
    f: float = 1.5
    b: bool = True
    meta: dict[str, str] = msgspec.field(default_factory=lambda: {"a": "b", "x.y": "z", "": "empty"})
    dcs: tuple[str, ...] = msgspec.field(default=("dc1", "dc2"), name="DCs")
    ints: tuple[int, ...] = (1, 2, 3)
    subs: tuple[Sub, ...] = (Sub("s0", 1), Sub("s1", 2, ("blue",)))
    nil_ptr: Sub | None = None
    nil_map: dict[str, str] | None = None
    nil_slice: tuple[str, ...] | None = None
    sub: Sub = Sub("inner", 9)

    ptr: Sub | None = Sub("held", 3)
    colour: Colour = Colour.BLUE
    mood: Mood = Mood.CALM
    data: bytes | None = b"GET /\xff"
    time: datetime.datetime | None = datetime.datetime(2026, 11, 21, 10, 30, tzinfo=datetime.UTC)
    no_time: datetime.datetime | None = None
    number: int | None = 4
    no_number: int | None = None
    no_text: str | None = None
    unset: Sub | msgspec.UnsetType = msgspec.UNSET
    floats: tuple[float, ...] = (0.5, 2.0)
    bools: tuple[bool, ...] = (True,)
    by_name: dict[str, Sub | None] = msgspec.field(default_factory=lambda: {"one": Sub("s0", 1), "none": None})
    members: frozenset[str] = frozenset({"x"})
    any_list: list[object] = msgspec.field(default_factory=lambda: [1, "two", 3.5, True, {"k": 1}])
    any: dict[str, object] = msgspec.field(default_factory=lambda: ANYTHING)


DATUM = Datum()


def accepts(text: str, datum: Datum = DATUM) -> bool:
    compiled: Filter = compile_filter(text, Datum)
    return compiled.accepts(datum)
