"""Answers queries of templates from the cluster: each result is fetched once, cached, and updated while the task runs."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from wharf.contract.client import AsyncClient, Unreachable
from wharf.contract.client.errors import get_requested_delay_s
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.world import World
from wharf.world.backoff import Backoff
from wharf.world.tasks import cancel_tasks, start_supervised

log = logging.getLogger(__name__)

MIN_RETRY_DELAY_S: Final = 1.0
"""The longest delay after a first failed query; it doubles with each further failure."""
MAX_RETRY_DELAY_S: Final = 15.0
"""The longest delay before a query is repeated. Limits the load of servers that are overloaded."""
POLL_S: Final = 60.0
"""How long a server may hold a query until its result changes."""


class QueryKey(NamedTuple):
    """The identity of a query that a template sends to the cluster."""

    kind: str  # variable, variables, service or services
    name: str  # of the variable or service, or the prefix of variables


class QueryResult(NamedTuple):
    """The result of a template's query."""

    value: object
    """`None` if the object does not exist."""
    error_text: str = ""
    """Why servers refused the query; empty if they did not."""


class ClusterQueries:
    """The queries of one task's templates, with their results.

    `on_change` is called when a result differs from the one before.
    """

    def __init__(self, world: World, client: AsyncClient, namespace: str, on_change: Callable[[], None]) -> None:
        self._world = world
        self._client = client
        self._namespace = namespace
        self._on_change = on_change
        self._results: dict[QueryKey, QueryResult] = {}
        self._following: dict[QueryKey, asyncio.Task[None]] = {}
        self._arrived = asyncio.Event()

    def find_result(self, query_type: str, name: str) -> QueryResult | None:
        """Return the cached result of a query; `None` if it has not arrived yet."""
        return self._results.get(QueryKey(query_type, name))

    def list_results(self) -> list[tuple[QueryKey, QueryResult]]:
        """Return all results that have arrived."""
        return list(self._results.items())

    def follow(self, keys: Sequence[QueryKey]) -> None:
        """Begin to fetch these queries and to keep their results up to date. Known queries are skipped."""
        for key in keys:
            if key not in self._following:
                self._following[key] = start_supervised(
                    self._world,
                    self._follow(key),
                    name=f"{key.kind} {key.name} of a template",
                    # Without a result, the task would wait for ever.
                    on_failure=lambda error, key=key: self._store_result(  # type: ignore[misc]
                        key, QueryResult(None, f"unexpected error of the node: {type(error).__name__}")
                    ),
                )

    async def wait_for_results(self, keys: Sequence[QueryKey]) -> None:
        """Begin to follow these queries, and wait until every one has a result."""
        self.follow(keys)
        while not all(key in self._results for key in keys):
            self._arrived.clear()
            await self._arrived.wait()

    async def close(self) -> None:
        """Stop following all queries and wait until that is done."""
        await cancel_tasks(*self._following.values())

    async def _follow(self, key: QueryKey) -> None:
        """Keep the result of one query up to date with blocking reads. Runs until canceled."""
        index = 0
        backoff = Backoff(self._world.random, min_s=MIN_RETRY_DELAY_S, max_s=MAX_RETRY_DELAY_S)
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
                backoff.reset()
                continue
            except Unreachable as error:
                delay_s = backoff.next_delay_s()
                log.info("query of a template failed error=%s", error)
            except Refusal as refusal:
                index = 0
                delay_s = backoff.next_delay_s(get_requested_delay_s(refusal))
                if refusal.code in (RefusalCode.FORBIDDEN, RefusalCode.NOT_FOUND, RefusalCode.INVALID):
                    self._store_result(
                        key, QueryResult(None, "" if refusal.code is RefusalCode.NOT_FOUND else refusal.text)
                    )
            await asyncio.sleep(delay_s)

    def _store_result(self, key: QueryKey, result: QueryResult) -> None:
        """Store a result, and call `on_change` if it differs from an earlier one."""
        previous = self._results.get(key)
        self._results[key] = result
        self._arrived.set()
        if previous is not None and previous != result:
            self._on_change()

    async def _read_variable(self, name: str, index: int) -> tuple[QueryResult, int]:
        """Wait until the index exceeds `index`, then return (the items of a variable, the new index).

        `None` as the result's value if the variable does not exist. Raises `Refusal` and `Unreachable`.
        """
        path, namespace = _split_name(name, self._namespace)
        # The list is followed, because a variable that does not exist has no index.
        response = await self._client.variables.list(prefix=path, namespace=namespace, index=index, wait_s=POLL_S)
        if not any(item.path == path for item in response.value):
            return QueryResult(None), response.index
        variable = await self._client.variables.read(path, namespace=namespace)
        items = variable.value.items
        return QueryResult({} if items is msgspec.UNSET else dict(items)), response.index

    async def _list_variables(self, prefix: str, index: int) -> tuple[QueryResult, int]:
        """Wait until the index exceeds `index`, then return (the variables below a path, the new index).

        Raises `Refusal` and `Unreachable`.
        """
        path, namespace = _split_name(prefix, self._namespace)
        response = await self._client.variables.list(prefix=path, namespace=namespace, index=index, wait_s=POLL_S)
        return QueryResult([_to_document(item) for item in response.value]), response.index

    async def _read_service(self, name: str, index: int) -> tuple[QueryResult, int]:
        """Wait until the index exceeds `index`, then return (the instances of a service, the new index).

        Raises `Refusal` and `Unreachable`.
        """
        name, namespace = _split_name(name, self._namespace)
        response = await self._client.services.read(name, namespace=namespace, index=index, wait_s=POLL_S)
        instances = sorted(response.value, key=lambda instance: (instance.address, instance.port, instance.id))
        return QueryResult(
            [{**_to_document(instance), "Name": instance.service_name} for instance in instances]
        ), response.index

    async def _list_services(self, _: str, index: int) -> tuple[QueryResult, int]:
        """Wait until the index exceeds `index`, then return (all services of the namespace, the new index).

        Raises `Refusal` and `Unreachable`.
        """
        response = await self._client.services.list(namespace=self._namespace, index=index, wait_s=POLL_S)
        stubs = [stub for item in response.value for stub in item.services]
        return QueryResult([{"Name": stub.service_name, "Tags": list(stub.tags)} for stub in stubs]), response.index


def _split_name(name: str, default_namespace: str) -> tuple[str, str]:
    """Split `path@NAMESPACE.REGION` into (path, namespace).

    Without the part after `@`, `default_namespace` is returned. The region is ignored: it is always the node's own.
    """
    path, _, suffix = name.partition("@")
    return path, suffix.partition(".")[0] or default_namespace


def _to_document(record: Any) -> dict[str, object]:  # Of any record: by its names on the wire.
    """Return the record as a mapping by the field names of the API, as templates see it."""
    document: Mapping[str, object] = msgspec.to_builtins(record)
    return dict(document)
