"""What templates ask of the cluster: each answer fetched once, kept, and followed as long as somebody uses it."""

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
POLL_S: Final = 60.0


class QueryKey(NamedTuple):
    kind: str  # variable, variables, service, services
    name: str


class QueryResult(NamedTuple):
    value: object
    """None: there is no such thing."""
    error_text: str = ""
    """Why it may not be known."""


class ClusterQueries:
    """For one task. `on_change` is called whenever something that was asked for is another than before."""

    def __init__(self, world: World, client: AsyncClient, namespace: str, on_change: Callable[[], None]) -> None:
        self._world = world
        self._client = client
        self._namespace = namespace
        self._on_change = on_change
        self._answers: dict[QueryKey, QueryResult] = {}
        self._following: dict[QueryKey, asyncio.Task[None]] = {}
        self._arrived = asyncio.Event()

    def find_result(self, kind: str, name: str) -> QueryResult | None:
        """None: not known yet."""
        return self._answers.get(QueryKey(kind, name))

    def follow(self, keys: Sequence[QueryKey]) -> None:
        for key in keys:
            if key not in self._following:
                self._following[key] = self._world.start_task(
                    self._follow(key), name=f"{key.kind} {key.name} of a template"
                )

    async def wait_for_results(self, keys: Sequence[QueryKey]) -> None:
        """Until there is an answer for each."""
        self.follow(keys)
        while not all(key in self._answers for key in keys):
            self._arrived.clear()
            await self._arrived.wait()

    async def close(self) -> None:
        tasks = list(self._following.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, key: QueryKey) -> None:
        index = 0
        ask = {
            "variable": self._variable,
            "variables": self._variables,
            "service": self._service,
            "services": self._services,
        }[key.kind]
        while True:
            try:
                answer, index = await ask(key.name, index)
                self._hear(key, answer)
                continue
            except Unreachable as error:
                log.info("a template's source cannot be asked: %s", error)
            except Refusal as refusal:
                index = 0
                if refusal.code in (RefusalCode.FORBIDDEN, RefusalCode.NOT_FOUND, RefusalCode.INVALID):
                    self._hear(key, QueryResult(None, "" if refusal.code is RefusalCode.NOT_FOUND else refusal.text))
            await asyncio.sleep(RETRY_DELAY_S)

    def _hear(self, key: QueryKey, answer: QueryResult) -> None:
        before = self._answers.get(key)
        self._answers[key] = answer
        self._arrived.set()
        if before is not None and before != answer:
            self._on_change()

    async def _variable(self, name: str, index: int) -> tuple[QueryResult, int]:
        path, namespace = _split(name, self._namespace)
        # The list is followed: what is not there yet has no index of its own.
        listed = await self._client.variables.list(prefix=path, namespace=namespace, index=index, wait_s=POLL_S)
        if not any(each.path == path for each in listed.value):
            return QueryResult(None), listed.index
        read = await self._client.variables.read(path, namespace=namespace)
        items = read.value.items
        return QueryResult({} if items is msgspec.UNSET else dict(items)), listed.index

    async def _variables(self, prefix: str, index: int) -> tuple[QueryResult, int]:
        path, namespace = _split(prefix, self._namespace)
        listed = await self._client.variables.list(prefix=path, namespace=namespace, index=index, wait_s=POLL_S)
        return QueryResult([_shown(each) for each in listed.value]), listed.index

    async def _service(self, name: str, index: int) -> tuple[QueryResult, int]:
        name, namespace = _split(name, self._namespace)
        found = await self._client.services.read(name, namespace=namespace, index=index, wait_s=POLL_S)
        instances = sorted(found.value, key=lambda one: (one.address, one.port, one.id))
        return QueryResult([{**_shown(one), "Name": one.service_name} for one in instances]), found.index

    async def _services(self, _: str, index: int) -> tuple[QueryResult, int]:
        listed = await self._client.services.list(namespace=self._namespace, index=index, wait_s=POLL_S)
        stubs = [stub for each in listed.value for stub in each.services]
        return QueryResult([{"Name": stub.service_name, "Tags": list(stub.tags)} for stub in stubs]), listed.index


def _split(name: str, namespace: str) -> tuple[str, str]:
    """`path@namespace`, with a region behind it that is ours."""
    path, _, place = name.partition("@")
    return path, place.partition(".")[0] or namespace


def _shown(record: Any) -> dict[str, object]:  # Of any record: by its names on the wire.
    shown: Mapping[str, object] = msgspec.to_builtins(record)
    return dict(shown)
