"""The synchronous client."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from wharf.contract.client.flow import ClientDefaults, RetryPolicy
from wharf.contract.client.flow_runners import SyncFlowRunner
from wharf.contract.client.nouns import ClientMethods
from wharf.contract.client.transport import SyncTransport
from wharf.world import World


class SyncClient(SyncFlowRunner, ClientMethods[SyncFlowRunner]):
    """A synchronous client of the HTTP API, such as `client.jobs.read("web")`. Fails over between servers."""

    def __init__(
        self,
        world: World,
        transports: Sequence[SyncTransport],
        *,
        defaults: ClientDefaults | None = None,
        retry_policy: RetryPolicy | None = None,
        sends_probes: bool = False,
    ) -> None:
        """`sends_probes`: whether a frozen server is found by probes while a blocking query waits for it."""
        SyncFlowRunner.__init__(
            self, world, transports, defaults=defaults, retry_policy=retry_policy, sends_probes=sends_probes
        )
        ClientMethods.__init__(self, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
