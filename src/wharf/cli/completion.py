"""What the shell completes: ids, asked of the server for a moment only. A server that is silent completes nothing.

`wharf completion`: a script for the shell that completes names of commands and options.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from wharf.contract.client import ClientReply, ClientRequest, SyncClient
    from wharf.contract.client.transport import SyncStreamedReply, SyncTransport

COMPLETION_TIMEOUT_S: Final = 1.0
MAX_COMPLETIONS: Final = 100
Completions = Iterable[tuple[str, str]]
"""Ids, and what to say of each."""


def _completer(
    look: "Callable[[SyncClient, str], Completions]",
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
        return [CompletionItem(id, help=about) for id, about in found[:MAX_COMPLETIONS]]

    return complete


class _Brief:
    """A way to a server that is not waited for."""

    def __init__(self, exchange: "SyncTransport") -> None:
        self._exchange = exchange

    def send(self, request: "ClientRequest") -> "ClientReply":
        import msgspec

        return self._exchange.send(msgspec.structs.replace(request, timeout_s=COMPLETION_TIMEOUT_S))

    def open(self, request: "ClientRequest") -> "SyncStreamedReply":
        return self._exchange.open(request)

    def close(self) -> None:
        self._exchange.close()


def _connect(context: click.Context) -> "SyncClient":
    from wharf.cli.common.server_commands import CONNECTION_OPTIONS, RealCommandEnvironment, build_settings
    from wharf.contract.client import NO_RETRIES, ClientDefaults, SyncClient
    from wharf.contract.client.connection import build_tls_context
    from wharf.contract.client.http_transport import SyncHttpTransport

    given: dict[str, Any] = {str(option.name): context.params.get(str(option.name)) for option in CONNECTION_OPTIONS}
    settings = build_settings({**given, "stale": True})
    surroundings = context.find_root().obj
    if surroundings is not None:
        client: SyncClient = surroundings.connect(settings)
        return client
    address = settings.addresses[0]
    tls = build_tls_context(settings) if address.startswith("https://") else None
    exchange = SyncHttpTransport(address, token=settings.token, tls=tls, server_name=settings.server_name)
    defaults = ClientDefaults(settings.namespace, settings.region, True)
    return SyncClient(RealCommandEnvironment().world, [_Brief(exchange)], defaults=defaults, retry_policy=NO_RETRIES)


complete_jobs = _completer(
    lambda client, given: [
        (one.id, one.status) for one in client.jobs.list(prefix=given, per_page=MAX_COMPLETIONS).value
    ]
)
complete_nodes = _completer(
    lambda client, given: [
        (one.id, one.name) for one in client.nodes.list(prefix=given, per_page=MAX_COMPLETIONS).value
    ]
)
complete_allocations = _completer(
    lambda client, given: [
        (one.id, one.name) for one in client.allocations.list(prefix=given, per_page=MAX_COMPLETIONS).value
    ]
)
complete_evaluations = _completer(
    lambda client, given: [
        (one.id, one.job_id) for one in client.evaluations.list(prefix=given, per_page=MAX_COMPLETIONS).value
    ]
)
complete_deployments = _completer(
    lambda client, given: [
        (one.id, one.job_id) for one in client.deployments.list(prefix=given, per_page=MAX_COMPLETIONS).value
    ]
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
    lambda client, given: [
        (one.path, "") for one in client.variables.list(prefix=given, per_page=MAX_COMPLETIONS).value
    ]
)


@click.command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands in your shell.

    bash: put `eval "$(wharf completion bash)"` into ~/.bashrc; zsh: the same with zsh into ~/.zshrc; fish:
    `wharf completion fish > ~/.config/fish/completions/wharf.fish`.
    """
    from click.shell_completion import get_completion_class

    from wharf.cli.root import root

    script = get_completion_class(shell)
    assert script is not None, f"click knows no completion for {shell}"
    click.echo(script(root, {}, "wharf", "_WHARF_COMPLETE").source())
