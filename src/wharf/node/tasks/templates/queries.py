"""Answers queries of templates from the cluster: each result is fetched once, kept, and followed while the task runs."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from wharf.contract.client import AsyncClient, Unreachable
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import World

log = logging.getLogger(__name__)

RETRY_DELAY_S: Final = 1.0
"""Seconds before the next attempt after a failed query."""
POLL_S: Final = 60.0
"""How long a server may hold a query until its result changes."""


class QueryKey(NamedTuple):
    """What a template asks the cluster for."""

    kind: str  # variable, variables, service, services
    name: str


class QueryResult(NamedTuple):
    """The result of a query."""

    value: object
    """`None` if the object does not exist."""
    error_text: str = ""
    """Why servers refused the query; empty if they did not."""


class ClusterQueries:
    """The queries of one task. `on_change` is called when a result differs from the one before."""

    def __init__(self, world: World, client: AsyncClient, namespace: str, on_change: Callable[[], None]) -> None:
        self._world = world
        self._client = client
        self._namespace = namespace
        self._on_change = on_change
        self._results: dict[QueryKey, QueryResult] = {}
        self._following: dict[QueryKey, asyncio.Task[None]] = {}
        self._arrived = asyncio.Event()

    def find_result(self, kind: str, name: str) -> QueryResult | None:
        """Return the result; `None` if it is not known yet."""
        return self._results.get(QueryKey(kind, name))

    def follow(self, keys: Sequence[QueryKey]) -> None:
        """Begin to follow these queries."""
        for key in keys:
            if key not in self._following:
                self._following[key] = self._world.start_task(
                    self._follow(key), name=f"{key.kind} {key.name} of a template"
                )

    async def wait_for_results(self, keys: Sequence[QueryKey]) -> None:
        """Wait until every query has a result."""
        self.follow(keys)
        while not all(key in self._results for key in keys):
            self._arrived.clear()
            await self._arrived.wait()

    async def close(self) -> None:
        """Stop following."""
        tasks = list(self._following.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, key: QueryKey) -> None:
        """Until canceled: keep the result of one query up to date with blocking reads."""
        index = 0
        read_function = {
            "variable": self._read_variable,
            "variables": self._list_variables,
            "service": self._read_service,
            "services": self._list_services,
        }[key.kind]
        while True:
            try:
                result, index = await read_function(key.name, index)
                self._store_result(key, result)
                continue
            except Unreachable as error:
                log.info("query of a template failed error=%s", error)
            except Refusal as refusal:
                index = 0
                if refusal.code in (RefusalCode.FORBIDDEN, RefusalCode.NOT_FOUND, RefusalCode.INVALID):
                    self._store_result(
                        key, QueryResult(None, "" if refusal.code is RefusalCode.NOT_FOUND else refusal.text)
                    )
            await asyncio.sleep(RETRY_DELAY_S)

    def _store_result(self, key: QueryKey, result: QueryResult) -> None:
        """Store a result and report it if it has changed."""
        previous = self._results.get(key)
        self._results[key] = result
        self._arrived.set()
        if previous is not None and previous != result:
            self._on_change()

    async def _read_variable(self, name: str, index: int) -> tuple[QueryResult, int]:
        """Read one variable, and the index to wait for the next change."""
        path, namespace = _split_name(name, self._namespace)
        # The list is followed, because a variable that does not exist has no index.
        response = await self._client.variables.list(prefix=path, namespace=namespace, index=index, wait_s=POLL_S)
        if not any(item.path == path for item in response.value):
            return QueryResult(None), response.index
        variable = await self._client.variables.read(path, namespace=namespace)
        items = variable.value.items
        return QueryResult({} if items is msgspec.UNSET else dict(items)), response.index

    async def _list_variables(self, prefix: str, index: int) -> tuple[QueryResult, int]:
        """List the variables below a path, and the index to wait for the next change."""
        path, namespace = _split_name(prefix, self._namespace)
        response = await self._client.variables.list(prefix=path, namespace=namespace, index=index, wait_s=POLL_S)
        return QueryResult([_to_document(item) for item in response.value]), response.index

    async def _read_service(self, name: str, index: int) -> tuple[QueryResult, int]:
        """List the instances of a service, and the index to wait for the next change."""
        name, namespace = _split_name(name, self._namespace)
        response = await self._client.services.read(name, namespace=namespace, index=index, wait_s=POLL_S)
        instances = sorted(response.value, key=lambda instance: (instance.address, instance.port, instance.id))
        return QueryResult(
            [{**_to_document(instance), "Name": instance.service_name} for instance in instances]
        ), response.index

    async def _list_services(self, _: str, index: int) -> tuple[QueryResult, int]:
        """List all services, and the index to wait for the next change."""
        response = await self._client.services.list(namespace=self._namespace, index=index, wait_s=POLL_S)
        stubs = [stub for item in response.value for stub in item.services]
        return QueryResult([{"Name": stub.service_name, "Tags": list(stub.tags)} for stub in stubs]), response.index


def _split_name(name: str, namespace: str) -> tuple[str, str]:
    """Split `path@namespace.region` into path and namespace; the region is always the node's own."""
    path, _, suffix = name.partition("@")
    return path, suffix.partition(".")[0] or namespace


def _to_document(record: Any) -> dict[str, object]:  # Of any record: by its names on the wire.
    """Return the record as templates see it, with its API names."""
    document: Mapping[str, object] = msgspec.to_builtins(record)
    return dict(document)
