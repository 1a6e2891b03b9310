"""."""

from collections.abc import Sequence
from typing import Unpack

from wharf.contract.client.calls import CallOptions, StreamSpec
from wharf.contract.client.methods import M, MethodGroup, stream_method
from wharf.contract.wire.events import EventLine


class EventMethods(MethodGroup[M]):
    @stream_method("event.stream")
    def stream(
        self, topics: Sequence[str] = (), *, index: int | None = None, **options: Unpack[CallOptions]
    ) -> StreamSpec[EventLine]:
        """What happens, for ever; after an outage it goes on where it was. Topics as `Job`, `Job:web`, `*`.

        Servers keep the last hundred changes at least: what an outage made anybody miss beyond these is not in it.
        """
        return StreamSpec(options, index=None if index is None else str(index), topic=tuple(topics))
