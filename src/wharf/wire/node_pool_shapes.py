"""A node pool as people submit it: its one duration may be text."""

from contextlib import suppress

from wharf.model.node_pool import NodePool
from wharf.wire.go_duration import DurationError, parse_duration_ns

TTL = "NodeIdentityTTL"


class NodePoolRequest(NodePool):
    @classmethod
    def complete_submission(cls, given: dict[str, object]) -> dict[str, object]:
        """`"12h"` is taken for its nanoseconds. Text that is none stays, and is refused with its place."""
        told = given.get(TTL)
        if isinstance(told, str):
            with suppress(DurationError):
                return {**given, TTL: parse_duration_ns(told)}
        return given

    def record(self) -> NodePool:
        return NodePool(**{name: getattr(self, name) for name in NodePool.__struct_fields__})
