"""Client methods for the event stream."""

from collections.abc import Sequence
from typing import Unpack

from wharf.contract.client.calls import CallOptions, StreamSpec
from wharf.contract.client.methods import M, MethodGroup, stream_method
from wharf.contract.wire.events import EventLine


class EventMethods(MethodGroup[M]):
    """The methods of `client.events`. Each describes a call, which the client then sends."""

    @stream_method("event.stream")
    def stream(
        self, topics: Sequence[str] = (), *, index: int | None = None, **options: Unpack[CallOptions]
    ) -> StreamSpec[EventLine]:
        """Yield events without end; continues after outages. Examples of topics: `Job`, `Job:web`, `*`.

        Servers store at least the last hundred changes. Events beyond that are missing after a longer outage.
        """
        return StreamSpec(options, index=None if index is None else str(index), topic=tuple(topics))
