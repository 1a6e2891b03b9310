"""What a decision asks of the log: a write, its conditions and its changes.

Deciders build a `Write` of records; nothing here knows how records are stored or where the log lives. Index fields of
a record may hold `THIS`: it stands for the index that the batch will get, and is replaced when the batch is applied. It
stands for the same number ever after, whatever is restored; only the version of the record is raised then.
"""

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

THIS: Final = -1
"""The index of the batch that carries this record, not yet known when the decision is taken."""

SEPARATOR: Final = "\0"
"""Joins the parts of a key. No name may hold it, and it sorts below every other character, so the order of joined
keys is the order of their parts."""


def join_key(*parts: str) -> str:
    """The key of a record from its parts, in the order of the table's declaration."""
    return SEPARATOR.join(parts)


def split_key(key: str) -> list[str]:
    return key.split(SEPARATOR)


class CauseKind(enum.StrEnum):
    REQUEST = "request"
    EVALUATION = "evaluation"
    NODE = "node"
    TIMER = "timer"
    FOUNDING = "founding"
    LEASE = "lease"
    OPERATOR = "operator"


class Cause(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What made somebody decide: a request's id, an evaluation's id, a node's id."""

    kind: CauseKind
    id: str = ""


class Put(msgspec.Struct, frozen=True, gc=False):
    """The record takes the place of whatever stood under its key."""

    table: str
    key: str
    record: msgspec.Struct


class Drop(msgspec.Struct, frozen=True, gc=False):
    """Whatever stands under the key goes. Dropping what is not there changes nothing."""

    table: str
    key: str


class Condition(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The record under the key is still of this version (its ModifyIndex); 0: there is none."""

    table: str
    key: str
    version: int


class Write(msgspec.Struct, frozen=True, gc=False):
    """All or nothing: if every condition holds, every change happens, at one index."""

    kind: str
    cause: Cause
    changes: Sequence[Put | Drop]
    conditions: Sequence[Condition] = ()
