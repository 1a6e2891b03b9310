"""Descriptors that turn the description of a call into a method of both clients, synchronous and asynchronous.

A method is declared once, in a method group: a function that takes the caller's arguments and returns a request spec. On a client,
the method sends that request. Type checkers see the function's own arguments on both clients.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, overload

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
"""A function that takes the arguments of a client method and returns the request to send."""

METHODS_BY_ENDPOINT: Final[dict[str, list[tuple[str, DescribeCall]]]] = {}
"""Endpoint name -> qualified name and function of its methods, for the test that every endpoint has a method."""


FORMER_METHOD_NAMES: Final[Mapping[str, str]] = {
    "command_line": "read_command_line",
    "desired": "list_assignments",
    "fetch": "fetch_assignments",
    "former": "read_predecessor",
    "heartbeat": "send_heartbeat",
    "identities": "sign_identities",
    "introduce_node": "create_introduction",
    "issuer": "read_issuer",
    "keys": "list_keys",
    "oidc_auth_url": "create_oidc_auth_url",
    "oidc_complete": "complete_oidc_login",
    "openapi": "read_openapi",
    "own": "read_own",
    "own_identity": "sign_own_identity",
    "report": "send_report",
    "secrets": "read_sealed_secrets",
    "self": "read_self",
    "stable": "mark_stable",
    "stacks": "read_stacks",
    "state": "read_state",
    "statuses": "list_statuses",
    "statuses_of": "list_statuses_of",
}
"""Names of client methods before 0.2, and their present names. Programs of users still call the former ones."""


class MethodGroup(Generic[M]):
    """The methods of one client for one noun, such as the methods of `client.jobs`."""

    def __init__(self, client: M) -> None:
        self.client = client

    if not TYPE_CHECKING:  # A type checker would accept every name.

        def __getattr__(self, name: str) -> Any:
            """Return the method that had this name before 0.2. Python calls this only for names that do not exist."""
            new_name = FORMER_METHOD_NAMES.get(name)
            if new_name is None or not hasattr(type(self), new_name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            return getattr(self, new_name)


class _BoundMethod(Generic[P]):
    """A method of one client for one endpoint.

    `describe` is the function of a method group that turns the caller's arguments into a request spec.
    """

    def __init__(
        self, client: Any, group: Any, endpoint: Endpoint, describe: DescribeCall
    ) -> None:  # Any, because the descriptors' overloads declare the types.
        self._client = client
        self._group = group
        self._endpoint = endpoint
        self._describe = describe
        self.__doc__ = describe.__doc__

    def _build_spec(self, *args: Any, **options: Any) -> RequestSpec:
        """Return the request spec for the caller's arguments."""
        return self._describe(self._group, *args, **options)


class SyncRead(_BoundMethod[P], Generic[P, T]):
    """A read method of the synchronous client: a call reads once, `follow` yields each change."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Response[T]:
        response: Response[T] = self._client.perform_call(self._endpoint, self._build_spec(*args, **kwargs))
        return response

    def follow(self, *args: P.args, **kwargs: P.kwargs) -> Generator[Response[T], None, None]:
        """Yield the current response, and a new one after each change, without end.

        During an outage it pauses and retries.
        """
        values: Generator[Response[T], None, None] = self._client.iterate(
            flow.follow_changes, self._endpoint, self._build_spec(*args, **kwargs)
        )
        return values


class AsyncRead(_BoundMethod[P], Generic[P, T]):
    """A read method of the asyncio client: a call reads once, `follow` yields each change."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Response[T]:
        response: Response[T] = await self._client.perform_call(self._endpoint, self._build_spec(*args, **kwargs))
        return response

    def follow(self, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Response[T], None]:
        """Yield the current response, and a new one after each change, without end.

        During an outage it pauses and retries.
        """
        values: AsyncGenerator[Response[T], None] = self._client.iterate(
            flow.follow_changes, self._endpoint, self._build_spec(*args, **kwargs)
        )
        return values


class SyncList(SyncRead[P, list[R]]):
    """A list method of the synchronous client: a call returns one page, `iterate` yields all records."""

    def iterate(self, *args: P.args, **kwargs: P.kwargs) -> Generator[R, None, None]:
        """Yield all records of the list, fetched page by page."""
        values: Generator[R, None, None] = self._client.iterate(
            flow.iterate_records, self._endpoint, self._build_spec(*args, **kwargs)
        )
        return values


class AsyncList(AsyncRead[P, list[R]]):
    """A list method of the asyncio client: a call returns one page, `iterate` yields all records."""

    def iterate(self, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]:
        """Yield all records of the list, fetched page by page."""
        values: AsyncGenerator[R, None] = self._client.iterate(
            flow.iterate_records, self._endpoint, self._build_spec(*args, **kwargs)
        )
        return values


class _Method:
    """The base of descriptors that turn a function of a method group into a client method for one endpoint."""

    def __init__(self, endpoint_name: str, describe: DescribeCall) -> None:
        self.endpoint = ENDPOINT_BY_NAME[endpoint_name]
        self.describe = describe
        self.__doc__ = describe.__doc__
        METHODS_BY_ENDPOINT.setdefault(endpoint_name, []).append((describe.__qualname__, describe))


class ReadMethod(_Method, Generic[P, T]):
    """A descriptor of a read method. On a method group it returns a `SyncRead` or `AsyncRead`, as its client requires."""

    @overload
    def __get__(self, group: None, owner: type) -> Self: ...
    @overload
    def __get__(self, group: MethodGroup[SyncFlowRunner], owner: type) -> SyncRead[P, T]: ...
    @overload
    def __get__(self, group: MethodGroup[AsyncFlowRunner], owner: type) -> AsyncRead[P, T]: ...
    def __get__(self, group: Any, owner: type) -> Any:  # The overloads above have the types.
        if group is None:
            return self
        method_type = AsyncRead if group.client.IS_ASYNC else SyncRead
        return method_type(group.client, group, self.endpoint, self.describe)


class ListMethod(_Method, Generic[P, R]):
    """A descriptor of a list method. On a method group it returns a `SyncList` or `AsyncList`, as its client requires."""

    @overload
    def __get__(self, group: None, owner: type) -> Self: ...
    @overload
    def __get__(self, group: MethodGroup[SyncFlowRunner], owner: type) -> SyncList[P, R]: ...
    @overload
    def __get__(self, group: MethodGroup[AsyncFlowRunner], owner: type) -> AsyncList[P, R]: ...
    def __get__(self, group: Any, owner: type) -> Any:  # The overloads above have the types.
        if group is None:
            return self
        method_type = AsyncList if group.client.IS_ASYNC else SyncList
        return method_type(group.client, group, self.endpoint, self.describe)


class CallMethod(_Method, Generic[P, T]):
    """A descriptor of a single call. On a method group it returns a function that performs the call and returns T.

    The function of an asyncio client returns a coroutine.
    """

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
    """A descriptor of a call with a streamed reply. On a method group it returns a function that yields values T.

    The function of an asyncio client returns an async generator.
    """

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


# Decorators for functions that describe a call. The first argument of such a function is its method group.


def read_method(endpoint_name: str) -> Callable[[Callable[Concatenate[Any, P], ReadSpec[T]]], ReadMethod[P, T]]:
    """Return a decorator for a function that describes a call of this endpoint, such as `job.read`.

    The function becomes a client method that reads a value.
    """
    return lambda describe: ReadMethod(endpoint_name, describe)


def list_method(endpoint_name: str) -> Callable[[Callable[Concatenate[Any, P], ListSpec[R]]], ListMethod[P, R]]:
    """Return a decorator for a function that describes a call of this endpoint, such as `job.read`.

    The function becomes a client method that lists records.
    """
    return lambda describe: ListMethod(endpoint_name, describe)


def call_method(endpoint_name: str) -> Callable[[Callable[Concatenate[Any, P], CallSpec[T]]], CallMethod[P, T]]:
    """Return a decorator for a function that describes a call of this endpoint, such as `job.read`.

    The function becomes a client method that performs the call.
    """
    return lambda describe: CallMethod(endpoint_name, describe)


def stream_method(endpoint_name: str) -> Callable[[Callable[Concatenate[Any, P], StreamSpec[T]]], StreamMethod[P, T]]:
    """Return a decorator for a function that describes a call of this endpoint, such as `job.read`.

    The function becomes a client method that yields the values of a stream.
    """
    return lambda describe: StreamMethod(endpoint_name, describe)
