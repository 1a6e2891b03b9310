"""The table of handlers: endpoint name -> handler. The endpoints themselves are declared in `wharf.contract.wire`.

A handler module defines `READ_HANDLERS` (reads of the replica) and `build_action_handlers` (everything else). Read
handlers that need the server, for example to decrypt secrets, come from `build_read_handlers` of their module.
"""

from collections.abc import Callable, Mapping
from typing import Final

from wharf.cluster.api.handlers import (
    deployments,
    evaluations,
    events,
    explanations,
    flows,
    identities,
    keyring,
    limits,
    namespaces,
    node_pools,
    operator,
    queue,
    quotas,
    scaling,
    search,
    services,
    snapshots,
    variables,
    volumes,
)  # fmt: skip
from wharf.cluster.api.handlers.acl import auth_methods, logins, policies, sessions, tokens
from wharf.cluster.api.handlers.acl.disabled import require_acl_enabled
from wharf.cluster.api.handlers.agents import documents, metrics, monitor, status
from wharf.cluster.api.handlers.allocations import control as allocation_control
from wharf.cluster.api.handlers.allocations import exec as allocation_exec
from wharf.cluster.api.handlers.allocations import files as allocation_files
from wharf.cluster.api.handlers.allocations import records as allocation_records
from wharf.cluster.api.handlers.jobs import actions as job_actions
from wharf.cluster.api.handlers.jobs import control as job_control
from wharf.cluster.api.handlers.jobs import reads as job_reads
from wharf.cluster.api.handlers.jobs import specification as job_specification
from wharf.cluster.api.handlers.jobs import statuses as job_statuses
from wharf.cluster.api.handlers.jobs import versions as job_versions
from wharf.cluster.api.handlers.nodes import agent_calls as node_agent_calls
from wharf.cluster.api.handlers.nodes import assignments as node_assignments
from wharf.cluster.api.handlers.nodes import fleet as node_fleet
from wharf.cluster.api.handlers.nodes import protocol as node_protocol
from wharf.cluster.api.handlers.nodes import records as node_records
from wharf.cluster.api.handlers.nodes import use as node_use
from wharf.cluster.api.lists.filters import JoinedFieldReaders
from wharf.cluster.api.results import ActionHandler, ReadHandler
from wharf.cluster.server.server import Server

READ_HANDLERS: Final[Mapping[str, ReadHandler]] = {
    **job_reads.READ_HANDLERS, **flows.READ_HANDLERS, **job_statuses.READ_HANDLERS, **job_versions.READ_HANDLERS, **evaluations.READ_HANDLERS,
    **explanations.READ_HANDLERS, **allocation_records.READ_HANDLERS, **deployments.READ_HANDLERS,
    **services.READ_HANDLERS, **scaling.READ_HANDLERS, **node_records.READ_HANDLERS, **node_fleet.READ_HANDLERS, **node_use.READ_HANDLERS,
    **node_pools.READ_HANDLERS, **namespaces.READ_HANDLERS, **quotas.READ_HANDLERS, **volumes.READ_HANDLERS,
    **keyring.READ_HANDLERS, **operator.READ_HANDLERS,
}  # fmt: skip

ACTION_BUILDERS: Final[tuple[Callable[[Server], dict[str, ActionHandler]], ...]] = (
    job_specification.build_action_handlers, job_versions.build_action_handlers, job_control.build_action_handlers,
    flows.build_action_handlers,    job_actions.build_action_handlers, evaluations.build_action_handlers, allocation_control.build_action_handlers,
    allocation_files.build_action_handlers, allocation_exec.build_action_handlers, deployments.build_action_handlers,
    services.build_action_handlers, search.build_action_handlers, node_records.build_action_handlers,
    node_protocol.build_action_handlers, node_agent_calls.build_action_handlers, node_pools.build_action_handlers,
    namespaces.build_action_handlers, quotas.build_action_handlers, volumes.build_action_handlers,
    events.build_action_handlers, identities.build_action_handlers, variables.build_action_handlers,
    keyring.build_action_handlers, status.build_action_handlers, monitor.build_action_handlers,
    operator.build_action_handlers, snapshots.build_action_handlers, metrics.build_action_handlers,
    documents.build_action_handlers, limits.build_action_handlers,
)  # fmt: skip

ACL_ACTION_BUILDERS: Final = (
    tokens.build_action_handlers, sessions.build_action_handlers, policies.build_action_handlers, auth_methods.build_action_handlers, logins.build_action_handlers,
)  # fmt: skip

JOINED_FIELD_READERS: Final[Mapping[type, JoinedFieldReaders]] = allocation_records.JOINED_FIELD_READERS
"""How filters read the fields that a list joins from other tables, by record type."""


def build_read_handlers(server: Server) -> dict[str, ReadHandler]:
    """Return the handlers of all read endpoints, by endpoint name.

    While access control is off, handlers of ACL endpoints refuse every request, except `acl.token.self` and `acl.check`.
    """
    handlers = {
        **READ_HANDLERS,
        **variables.build_read_handlers(server),
        **queue.build_read_handlers(server),
        **explanations.build_read_handlers(server),
        **node_assignments.build_read_handlers(),
    }
    for module in (tokens, sessions, policies, auth_methods):
        for name, handler in module.build_read_handlers(server).items():
            handlers[name] = require_acl_enabled(server, handler)
    return handlers | {"acl.token.self": tokens.TokenReads(server).read_own_token, "acl.check": tokens.check_access}


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    """Return the handlers of all endpoints that are not reads, by endpoint name.

    While access control is off, handlers of ACL endpoints refuse every request.
    """
    handlers = {name: handler for build in ACTION_BUILDERS for name, handler in build(server).items()}
    for build in ACL_ACTION_BUILDERS:
        for name, handler in build(server).items():
            handlers[name] = require_acl_enabled(server, handler)
    return handlers
