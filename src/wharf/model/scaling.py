"""The bounds within which a group's count may be scaled, and the opaque policy that an autoscaler reads."""

from enum import StrEnum
from typing import Final

from wharf.model.record import Record

MAX_NOT_GIVEN: Final = -1


class ScalingKind(StrEnum):
    """What a policy scales. Only the count of a group (horizontal) is supported."""

    HORIZONTAL = "horizontal"
    VERTICAL_CPU = "vertical_cpu"
    VERTICAL_MEM = "vertical_mem"


class ScalingPolicy(Record):
    """A policy as a group carries it and as the table of policies lists it. The server sets id, target and indexes."""

    id: str = ""
    type: str = ScalingKind.HORIZONTAL
    target: dict[str, str] | None = None
    policy: dict[str, object] | None = None
    min: int = 0
    max: int = MAX_NOT_GIVEN
    enabled: bool = True
    create_index: int = 0
    modify_index: int = 0
