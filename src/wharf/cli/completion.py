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
MAX_COMPLETED_JOBS: Final = 10
"""Limit of the jobs whose allocations are offered; each is a request."""
MAX_LISTED_NODES: Final = 2_000
"""Limit of the nodes among which names are looked for."""
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
        return [CompletionItem(id, help=_clean_description(text)) for id, text in found[:MAX_COMPLETIONS]]

    return complete


def _clean_description(text: str) -> str:
    """Return a description on one line and without commas, which end a description in fish."""
    return " ".join(text.replace(",", " ").split())


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


def _list_jobs(client: "SyncClient", prefix: str) -> Completions:
    """Return the ids of jobs, running ones first."""
    jobs = client.jobs.list(prefix=prefix, per_page=MAX_COMPLETIONS).value
    return [(job.id, job.status) for job in sorted(jobs, key=lambda job: (job.status != "running", job.id))]


def _list_nodes(client: "SyncClient", prefix: str) -> Completions:
    """Return the names of nodes, ready ones first; for the beginning of an id also ids."""
    from wharf.cli.common.lookup import match_id_prefix

    nodes = sorted(
        client.nodes.list(per_page=MAX_LISTED_NODES).value, key=lambda node: (node.status != "ready", node.name)
    )
    names = [(node.name, f"{node.id[:8]}, {node.status}") for node in nodes]
    by_id = match_id_prefix(prefix, lambda part: client.nodes.list(prefix=part, per_page=MAX_COMPLETIONS).value)
    return [*names, *((node.id, node.name) for node in by_id)]


def _list_allocations(client: "SyncClient", prefix: str) -> Completions:
    """Return the names of allocations, running ones first; for the beginning of an id also ids."""
    from wharf.cli.common.allocation_selection import get_natural_order, select_newest
    from wharf.cli.common.lookup import match_id_prefix

    by_id = match_id_prefix(prefix, lambda part: client.allocations.list(prefix=part, per_page=MAX_COMPLETIONS).value)
    jobs = [id for id, _ in _list_jobs(client, prefix.partition(".")[0])]
    found = select_newest(
        allocation for job_id in jobs[:MAX_COMPLETED_JOBS] for allocation in client.jobs.allocations(job_id).value
    )
    found.sort(
        key=lambda allocation: (allocation.client_status != "running", allocation.job_id, get_natural_order(allocation))
    )
    names = [(each.name, f"{each.id[:8]}, {each.client_status}") for each in found]
    return [*names, *((each.id, each.name) for each in by_id)]


complete_jobs = _create_completer(_list_jobs)
complete_nodes = _create_completer(_list_nodes)
complete_allocations = _create_completer(_list_allocations)
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
    source = script(root, {}, "wharf", "_WHARF_COMPLETE").source()
    # fish sorts completions by name unless `--keep-order` is given.
    click.echo(source.replace("complete --no-files", "complete --keep-order --no-files") if shell == "fish" else source)
