"""Descriptors that turn the description of a call into a method of both clients, synchronous and asynchronous.

A method is declared once, in a method group: a function that takes the caller's arguments and returns a request spec. On a client,
the method sends that request. Type checkers see the function's own arguments on both clients.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, overload

from wharf.contract.client import flow
from wharf.contract.client.calls import CallSpec, ListSpec, ReadSpec, RequestSpec, Response, StreamSpec
from wharf.contract.client.flow_runners import AsyncFlowRunner, SyncFlowRunner
from wharf.contract.client.streams import read_stream
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME, Endpoint

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
M = TypeVar("M", bound=SyncFlowRunner | AsyncFlowRunner)

DescribeCall = Callable[..., RequestSpec]

METHODS_BY_ENDPOINT: Final[dict[str, list[tuple[str, DescribeCall]]]] = {}
"""Endpoint name -> qualified name and description of its methods. For the test that covers the whole table."""


class MethodGroup(Generic[M]):
    """The methods of one client for one noun, such as jobs."""

    def __init__(self, client: M) -> None:
        self.client = client


class _BoundMethod(Generic[P]):
    """A client method for one endpoint; `describe` turns the caller's arguments into a request spec."""

    def __init__(
        self, client: Any, group: Any, endpoint: Endpoint, describe: DescribeCall
    ) -> None:  # Any, because the descriptors' overloads declare the types.
        self._client = client
        self._group = group
        self._endpoint = endpoint
        self._describe = describe
        self.__doc__ = describe.__doc__

    def _build_spec(self, *args: Any, **options: Any) -> RequestSpec:
        """Return the request spec for these arguments."""
        return self._describe(self._group, *args, **options)


class SyncRead(_BoundMethod[P], Generic[P, T]):
    """A read method of the synchronous client."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Response[T]:
        response: Response[T] = self._client.perform_call(self._endpoint, self._build_spec(*args, **kwargs))
        return response

    def follow(self, *args: P.args, **kwargs: P.kwargs) -> Generator[Response[T], None, None]:
        """Yield the current response, and a new one whenever it changes, without end. Outages are waited out."""
        values: Generator[Response[T], None, None] = self._client.iterate(
            flow.follow_changes, self._endpoint, self._build_spec(*args, **kwargs)
        )
        return values


class AsyncRead(_BoundMethod[P], Generic[P, T]):
    """A read method of the asyncio client."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Response[T]:
        response: Response[T] = await self._client.perform_call(self._endpoint, self._build_spec(*args, **kwargs))
        return response

    def follow(self, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Response[T], None]:
        """Yield the current response, and a new one whenever it changes, without end. Outages are waited out."""
        values: AsyncGenerator[Response[T], None] = self._client.iterate(
            flow.follow_changes, self._endpoint, self._build_spec(*args, **kwargs)
        )
        return values


class SyncList(SyncRead[P, list[R]]):
    """A list method of the synchronous client."""

    def iterate(self, *args: P.args, **kwargs: P.kwargs) -> Generator[R, None, None]:
        """Yield all records, fetched page by page."""
        values: Generator[R, None, None] = self._client.iterate(
            flow.iterate_records, self._endpoint, self._build_spec(*args, **kwargs)
        )
        return values


class AsyncList(AsyncRead[P, list[R]]):
    """A list method of the asyncio client."""

    def iterate(self, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]:
        """Yield all records, fetched page by page."""
        values: AsyncGenerator[R, None] = self._client.iterate(
            flow.iterate_records, self._endpoint, self._build_spec(*args, **kwargs)
        )
        return values


class _Method:
    """A descriptor of a client method, for the endpoint with this name."""

    def __init__(self, name: str, describe: DescribeCall) -> None:
        self.endpoint = ENDPOINT_BY_NAME[name]
        self.describe = describe
        self.__doc__ = describe.__doc__
        METHODS_BY_ENDPOINT.setdefault(name, []).append((describe.__qualname__, describe))


class ReadMethod(_Method, Generic[P, T]):
    """A descriptor of a read method: on a client it returns `SyncRead` or `AsyncRead`, depending on the client."""

    @overload
    def __get__(self, group: None, owner: type) -> Self: ...
    @overload
    def __get__(self, group: MethodGroup[SyncFlowRunner], owner: type) -> SyncRead[P, T]: ...
    @overload
    def __get__(self, group: MethodGroup[AsyncFlowRunner], owner: type) -> AsyncRead[P, T]: ...
    def __get__(self, group: Any, owner: type) -> Any:  # The overloads above have the types.
        if group is None:
            return self
        kind = AsyncRead if group.client.IS_ASYNC else SyncRead
        return kind(group.client, group, self.endpoint, self.describe)


class ListMethod(_Method, Generic[P, R]):
    """A descriptor of a list method: on a client it returns `SyncList` or `AsyncList`, depending on the client."""

    @overload
    def __get__(self, group: None, owner: type) -> Self: ...
    @overload
    def __get__(self, group: MethodGroup[SyncFlowRunner], owner: type) -> SyncList[P, R]: ...
    @overload
    def __get__(self, group: MethodGroup[AsyncFlowRunner], owner: type) -> AsyncList[P, R]: ...
    def __get__(self, group: Any, owner: type) -> Any:  # The overloads above have the types.
        if group is None:
            return self
        kind = AsyncList if group.client.IS_ASYNC else SyncList
        return kind(group.client, group, self.endpoint, self.describe)


class CallMethod(_Method, Generic[P, T]):
    """A descriptor of a single call: on a client it is a function that returns T, or a coroutine function (asyncio)."""

    @overload
    def __get__(self, group: None, owner: type) -> Self: ...
    @overload
    def __get__(self, group: MethodGroup[SyncFlowRunner], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, group: MethodGroup[AsyncFlowRunner], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, group: Any, owner: type) -> Any:  # The overloads above have the types.
        if group is None:
            return self

        def method(*args: Any, **kwargs: Any) -> Any:  # The arguments of the description.
            return group.client.perform_call(self.endpoint, self.describe(group, *args, **kwargs))

        method.__doc__ = self.__doc__
        return method


class StreamMethod(_Method, Generic[P, T]):
    """A descriptor of a stream: on a client it is a function that returns a generator, or an async one (asyncio)."""

    @overload
    def __get__(self, group: None, owner: type) -> Self: ...
    @overload
    def __get__(self, group: MethodGroup[SyncFlowRunner], owner: type) -> Callable[P, Generator[T, None, None]]: ...
    @overload
    def __get__(self, group: MethodGroup[AsyncFlowRunner], owner: type) -> Callable[P, AsyncGenerator[T, None]]: ...
    def __get__(self, group: Any, owner: type) -> Any:  # The overloads above have the types.
        if group is None:
            return self

        def method(*args: Any, **kwargs: Any) -> Any:  # The arguments of the description.
            return group.client.iterate(read_stream, self.endpoint, self.describe(group, *args, **kwargs))

        method.__doc__ = self.__doc__
        return method


# Decorators for descriptions. They name the endpoint and select the kind of reply. The first argument of a description is its
# method group.


def read_method(name: str) -> Callable[[Callable[Concatenate[Any, P], ReadSpec[T]]], ReadMethod[P, T]]:
    """Decorate a description as a read of this endpoint."""
    return lambda describe: ReadMethod(name, describe)


def list_method(name: str) -> Callable[[Callable[Concatenate[Any, P], ListSpec[R]]], ListMethod[P, R]]:
    """Decorate a description as a list of this endpoint."""
    return lambda describe: ListMethod(name, describe)


def call_method(name: str) -> Callable[[Callable[Concatenate[Any, P], CallSpec[T]]], CallMethod[P, T]]:
    """Decorate a description as a single call of this endpoint."""
    return lambda describe: CallMethod(name, describe)


def stream_method(name: str) -> Callable[[Callable[Concatenate[Any, P], StreamSpec[T]]], StreamMethod[P, T]]:
    """Decorate a description as a stream of this endpoint."""
    return lambda describe: StreamMethod(name, describe)
