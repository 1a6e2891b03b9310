"""Endpoints of namespaces."""

from typing import Final

from wharf.api.answers import Act, Done, Reading, one
from wharf.api.listing import Listing, by_name
from wharf.api.request import ReadOptions, Request
from wharf.model.namespace import Namespace
from wharf.model.need import READ_NAMESPACE
from wharf.model.refusal import invalid
from wharf.operations import namespaces
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state.tables import NAMESPACES


def namespace_list(replica: Replica, request: Request, options: ReadOptions) -> Listing[Namespace]:
    return by_name(replica, NAMESPACES, options, may_see=lambda each: request.may(READ_NAMESPACE, namespace=each.name))


def namespace_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    name = request.value("namespace_name")
    request.require(namespace=name)
    return Found(*one(replica, NAMESPACES, name, missing="Namespace not found"))


READS: Final[dict[str, Reading]] = {"namespace.list": namespace_list, "namespace.read": namespace_read}


class NamespaceWrites:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def store(self, request: Request) -> Done:
        return await self._store(request.read_body(Namespace), request)

    async def update(self, request: Request) -> Done:
        wanted = request.read_body(Namespace)
        if wanted.name != request.value("namespace_name"):
            raise invalid("Namespace name does not match request path")
        return await self._store(wanted, request)

    async def _store(self, wanted: Namespace, request: Request) -> Done:
        index = await self._server.writer.write(
            lambda snapshot, _moment: namespaces.store(snapshot, wanted, cause=request.id)
        )
        return Done(index=index)

    async def delete(self, request: Request) -> Done:
        name, region = request.value("namespace_name"), self._server.identity.region
        await self._server.writer.catch_up()  # That nothing is in it rests on no record: see all that was acknowledged.
        index = await self._server.writer.write(
            lambda snapshot, _moment: namespaces.delete(snapshot, name, region=region, cause=request.id)
        )
        return Done(index=index)


def acts_of(server: Server) -> dict[str, Act]:
    writes = NamespaceWrites(server)
    return {
        "namespace.store": writes.store,
        "namespace.update": writes.update,
        "namespace.delete": writes.delete,
    }
