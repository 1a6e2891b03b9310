"""What the shell completes: ids, asked of the server for a moment only. A server that is silent completes nothing."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from wharf.client import Reply, Request, SyncClient
    from wharf.client.exchange import SyncExchange, SyncOpened

WITHIN_S: Final = 1.0
MOST: Final = 100
Found = Iterable[tuple[str, str]]
"""Ids, and what to say of each."""


def _completer(
    look: "Callable[[SyncClient, str], Found]",
) -> "Callable[[click.Context, click.Parameter, str], list[CompletionItem]]":
    def complete(context: click.Context, _: click.Parameter, given: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        try:
            client = _connect(context)
            try:
                found = [entry for entry in look(client, given) if entry[0].startswith(given)]
            finally:
                client.close()
        except Exception:  # Whatever it is, a completion must not write into the line that is typed.
            return []
        return [CompletionItem(id, help=about) for id, about in found[:MOST]]

    return complete


class _Brief:
    """A way to a server that is not waited for."""

    def __init__(self, exchange: "SyncExchange") -> None:
        self._exchange = exchange

    def send(self, request: "Request") -> "Reply":
        import msgspec

        return self._exchange.send(msgspec.structs.replace(request, timeout_s=WITHIN_S))

    def open(self, request: "Request") -> "SyncOpened":
        return self._exchange.open(request)

    def close(self) -> None:
        self._exchange.close()


def _connect(context: click.Context) -> "SyncClient":
    from wharf.cli.speaking import CONNECTION, RealSurroundings, settings_of
    from wharf.client import ONCE, Defaults, SyncClient
    from wharf.client.connecting import tls_of
    from wharf.client.http import SyncHttpExchange

    given: dict[str, Any] = {str(option.name): context.params.get(str(option.name)) for option in CONNECTION}
    settings = settings_of({**given, "stale": True})
    surroundings = context.find_root().obj
    if surroundings is not None:
        client: SyncClient = surroundings.connect(settings)
        return client
    address = settings.addresses[0]
    tls = tls_of(settings) if address.startswith("https://") else None
    exchange = SyncHttpExchange(address, token=settings.token, tls=tls, server_name=settings.server_name)
    defaults = Defaults(settings.namespace, settings.region, True)
    return SyncClient(RealSurroundings().world, [_Brief(exchange)], defaults=defaults, retries=ONCE)


complete_jobs = _completer(
    lambda client, given: [(one.id, one.status) for one in client.jobs.list(prefix=given, per_page=MOST).value]
)
complete_nodes = _completer(
    lambda client, given: [(one.id, one.name) for one in client.nodes.list(prefix=given, per_page=MOST).value]
)
complete_allocations = _completer(
    lambda client, given: [(one.id, one.name) for one in client.allocations.list(prefix=given, per_page=MOST).value]
)
complete_evaluations = _completer(
    lambda client, given: [(one.id, one.job_id) for one in client.evaluations.list(prefix=given, per_page=MOST).value]
)
complete_deployments = _completer(
    lambda client, given: [(one.id, one.job_id) for one in client.deployments.list(prefix=given, per_page=MOST).value]
)
complete_namespaces = _completer(
    lambda client, given: [(one.name, one.description) for one in client.namespaces.list(prefix=given).value]
)
complete_pools = _completer(
    lambda client, given: [(one.name, one.description) for one in client.node_pools.list(prefix=given).value]
)
complete_quotas = _completer(
    lambda client, given: [(one.name, one.description) for one in client.quotas.list(prefix=given).value]
)
complete_volumes = _completer(
    lambda client, _: [(one.name, f"on {one.node_id[:8]}, {one.state}") for one in client.host_volumes.list().value]
)
complete_variables = _completer(
    lambda client, given: [(one.path, "") for one in client.variables.list(prefix=given, per_page=MOST).value]
)
