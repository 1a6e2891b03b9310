"""Endpoints of namespaces. Callers see the namespaces in which they have any right."""

from typing import Final

from wharf.cluster.api.lists.listing import Listing, list_by_name
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, ReadHandler, find_record
from wharf.cluster.operations import namespaces
from wharf.cluster.operations.references import DELETION_ATTEMPTS
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import NAMESPACES
from wharf.contract.model.acl.permissions import READ_NAMESPACE
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.refusal import invalid_request


def list_namespaces(replica: Replica, request: Request, options: QueryOptions) -> Listing[Namespace]:
    return list_by_name(
        replica,
        NAMESPACES,
        options,
        is_visible=lambda each: request.has_permission(READ_NAMESPACE, namespace=each.name),
    )


def read_namespace(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    name = request.get_path_value("namespace_name")
    request.require_permission(namespace=name)
    return ReadResult(*find_record(replica, NAMESPACES, name, missing_text="Namespace not found"))


READ_HANDLERS: Final[dict[str, ReadHandler]] = {"namespace.list": list_namespaces, "namespace.read": read_namespace}


class NamespaceActions:
    """Writes namespaces."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def store_namespace(self, request: Request) -> ActionResult:
        return await self._store(request.decode_body(Namespace), request)

    async def update_namespace(self, request: Request) -> ActionResult:
        """Replace the namespace of the path. Raises `Refusal` if the body has another name."""
        namespace = request.decode_body(Namespace)
        if namespace.name != request.get_path_value("namespace_name"):
            raise invalid_request("Namespace name does not match request path")
        return await self._store(namespace, request)

    async def _store(self, namespace: Namespace, request: Request) -> ActionResult:
        """Create or replace the namespace."""
        index = await self._server.writer.execute(
            lambda snapshot, _context: namespaces.store_namespace(snapshot, namespace, cause=request.id)
        )
        return ActionResult(index=index)

    async def delete_namespace(self, request: Request) -> ActionResult:
        """Delete the namespace of the path. Raises `Refusal` if it is in use."""
        name, region = request.get_path_value("namespace_name"), self._server.identity.region
        # Whether the namespace is in use depends on many records, so the replica must hold all acknowledged writes.
        await self._server.writer.catch_up()
        index = await self._server.writer.execute(
            lambda snapshot, _context: namespaces.delete_namespace(snapshot, name, region=region, cause=request.id),
            max_attempts=DELETION_ATTEMPTS,
            is_long=True,
        )
        return ActionResult(index=index)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = NamespaceActions(server)
    return {
        "namespace.store": actions.store_namespace,
        "namespace.update": actions.update_namespace,
        "namespace.delete": actions.delete_namespace,
    }
