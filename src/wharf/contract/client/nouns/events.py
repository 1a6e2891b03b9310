"""Client methods for the event stream."""

from collections.abc import Sequence
from typing import Unpack

from wharf.contract.client.calls import CallOptions, CallSpec, StreamSpec
from wharf.contract.client.methods import M, MethodGroup, call_method, stream_method
from wharf.contract.wire.events import ChangeLine, EventLine, RecentEvents


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

    @call_method("event.recent")
    def recent(self, topics: Sequence[str] = (), **options: Unpack[CallOptions]) -> CallSpec[RecentEvents]:
        """List the last changes of records that the caller may see, the newest first, without the records."""
        return CallSpec(options, topic=tuple(topics))

    @stream_method("event.changes")
    def changes(self, topics: Sequence[str] = (), **options: Unpack[CallOptions]) -> StreamSpec[ChangeLine]:
        """Yield which records changed, without the records, at most once a second and without end."""
        return StreamSpec(options, topic=tuple(topics))
