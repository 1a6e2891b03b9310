"""Shell completion: ids and names, which a server is asked for, and `wharf completion`, which prints the script.

Completion never fails visibly: if no server replies quickly, nothing is completed.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from wharf.contract.client import ClientReply, ClientRequest, SyncClient
    from wharf.contract.client.transport import SyncStreamedReply, SyncTransport

COMPLETION_TIMEOUT_S: Final = 1.0
"""How long the shell may wait for a completion."""
MAX_COMPLETIONS: Final = 100
"""Limit of the offered completions; more could not be read."""
Completions = Iterable[tuple[str, str]]
"""Ids or names, each with a description."""


def _create_completer(
    list_completions: "Callable[[SyncClient, str], Completions]",
) -> "Callable[[click.Context, click.Parameter, str], list[CompletionItem]]":
    """Return a click completion function that lists completions for a prefix through the client."""

    def complete(context: click.Context, _: click.Parameter, prefix: str) -> "list[CompletionItem]":
        """Return the completions for a prefix, or none if the server does not reply quickly."""
        from click.shell_completion import CompletionItem

        try:
            client = _connect(context)
            try:
                found = [entry for entry in list_completions(client, prefix) if entry[0].startswith(prefix)]
            finally:
                client.close()
        except Exception:  # Any error text would appear within the line that the user types.
            return []
        return [CompletionItem(id, help=description) for id, description in found[:MAX_COMPLETIONS]]

    return complete


class _ShortTimeoutTransport:
    """A transport whose requests time out after COMPLETION_TIMEOUT_S."""

    def __init__(self, transport: "SyncTransport") -> None:
        self._transport = transport

    def send(self, request: "ClientRequest") -> "ClientReply":
        import msgspec

        return self._transport.send(msgspec.structs.replace(request, timeout_s=COMPLETION_TIMEOUT_S))

    def open(self, request: "ClientRequest") -> "SyncStreamedReply":
        return self._transport.open(request)

    def close(self) -> None:
        self._transport.close()


def _connect(context: click.Context) -> "SyncClient":
    """Return a client for the first address of the settings; it does not retry and accepts stale replies."""
    from wharf.cli.common.server_commands import (
        CONNECTION_OPTIONS,
        RealCommandEnvironment,
        build_settings,
        get_variable_prefixes,
    )
    from wharf.contract.client import NO_RETRIES, ClientDefaults, SyncClient
    from wharf.contract.client.connection import build_tls_context
    from wharf.contract.client.http_transport import SyncHttpTransport

    options: dict[str, Any] = {str(option.name): context.params.get(str(option.name)) for option in CONNECTION_OPTIONS}
    settings = build_settings({**options, "stale": True}, prefixes=get_variable_prefixes(context))
    environment = context.find_root().obj
    if environment is not None:
        client: SyncClient = environment.connect(settings)
        return client
    address = settings.addresses[0]
    tls = build_tls_context(settings) if address.startswith("https://") else None
    transport = SyncHttpTransport(address, token=settings.token, tls=tls, server_name=settings.server_name)
    defaults = ClientDefaults(settings.namespace, settings.region, True)
    return SyncClient(
        RealCommandEnvironment().world,
        [_ShortTimeoutTransport(transport)],
        defaults=defaults,
        retry_policy=NO_RETRIES,
    )


complete_jobs = _create_completer(
    lambda client, prefix: [
        (job.id, job.status) for job in client.jobs.list(prefix=prefix, per_page=MAX_COMPLETIONS).value
    ]
)
complete_nodes = _create_completer(
    lambda client, prefix: [
        (node.id, node.name) for node in client.nodes.list(prefix=prefix, per_page=MAX_COMPLETIONS).value
    ]
)
complete_allocations = _create_completer(
    lambda client, prefix: [
        (allocation.id, allocation.name)
        for allocation in client.allocations.list(prefix=prefix, per_page=MAX_COMPLETIONS).value
    ]
)
complete_evaluations = _create_completer(
    lambda client, prefix: [
        (evaluation.id, evaluation.job_id)
        for evaluation in client.evaluations.list(prefix=prefix, per_page=MAX_COMPLETIONS).value
    ]
)
complete_deployments = _create_completer(
    lambda client, prefix: [
        (deployment.id, deployment.job_id)
        for deployment in client.deployments.list(prefix=prefix, per_page=MAX_COMPLETIONS).value
    ]
)
complete_namespaces = _create_completer(
    lambda client, prefix: [
        (namespace.name, namespace.description) for namespace in client.namespaces.list(prefix=prefix).value
    ]
)
complete_pools = _create_completer(
    lambda client, prefix: [(pool.name, pool.description) for pool in client.node_pools.list(prefix=prefix).value]
)
complete_quotas = _create_completer(
    lambda client, prefix: [(quota.name, quota.description) for quota in client.quotas.list(prefix=prefix).value]
)
complete_volumes = _create_completer(
    lambda client, _: [
        (volume.name, f"on {volume.node_id[:8]}, {volume.state}") for volume in client.host_volumes.list().value
    ]
)
complete_variables = _create_completer(
    lambda client, prefix: [
        (variable.path, "") for variable in client.variables.list(prefix=prefix, per_page=MAX_COMPLETIONS).value
    ]
)


@click.command
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands in your shell.

    bash: add `eval "$(wharf completion bash)"` to ~/.bashrc; zsh: the same with zsh, to ~/.zshrc; fish:
    `wharf completion fish > ~/.config/fish/completions/wharf.fish`.
    """
    from click.shell_completion import get_completion_class

    from wharf.cli.root import root

    script = get_completion_class(shell)
    assert script is not None, f"click has no completion for {shell}"
    click.echo(script(root, {}, "wharf", "_WHARF_COMPLETE").source())
