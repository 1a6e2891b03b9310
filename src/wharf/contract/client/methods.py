"""How a description of a call becomes a method of both clients: one that gives T, and one that is awaited for T.

A method is declared once, in a noun: a function that takes what the caller says and returns what to ask. Bound to a
client it asks. Both clients see the function's own arguments; type checkers too.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, overload

from wharf.contract.client import flow
from wharf.contract.client.calls import CallSpec, ListSpec, ReadSpec, RequestSpec, Response, StreamSpec
from wharf.contract.client.streams import read_stream
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME, Endpoint

if TYPE_CHECKING:
    from wharf.contract.client.async_client import AsyncClient
    from wharf.contract.client.sync_client import SyncClient

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
M = TypeVar("M", bound="SyncClient | AsyncClient")

DescribeCall = Callable[..., RequestSpec]

METHODS_BY_ENDPOINT: Final[dict[str, list[tuple[str, DescribeCall]]]] = {}
"""Of each row the methods that ask it: their full names and descriptions. For the test that walks the table."""


class MethodGroup(Generic[M]):
    """Methods about one kind of thing, of one client."""

    def __init__(self, client: M) -> None:
        self.client = client


class _Bound(Generic[P]):
    """A method of a client."""

    def __init__(
        self, client: Any, noun: Any, row: Endpoint, describe: DescribeCall
    ) -> None:  # Typed where it is bound.
        self._client = client
        self._noun = noun
        self._row = row
        self._describe = describe
        self.__doc__ = describe.__doc__

    def _ask(self, *args: Any, **options: Any) -> RequestSpec:
        return self._describe(self._noun, *args, **options)


class SyncRead(_Bound[P], Generic[P, T]):
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Response[T]:
        answer: Response[T] = self._client.perform_call(self._row, self._ask(*args, **kwargs))
        return answer

    def follow(self, *args: P.args, **kwargs: P.kwargs) -> Generator[Response[T], None, None]:
        """What it says now, and again whenever that changes, for ever. Outages are waited out."""
        gives: Generator[Response[T], None, None] = self._client.iterate(
            flow.follow_changes, self._row, self._ask(*args, **kwargs)
        )
        return gives


class AsyncRead(_Bound[P], Generic[P, T]):
    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Response[T]:
        answer: Response[T] = await self._client.perform_call(self._row, self._ask(*args, **kwargs))
        return answer

    def follow(self, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Response[T], None]:
        """What it says now, and again whenever that changes, for ever. Outages are waited out."""
        gives: AsyncGenerator[Response[T], None] = self._client.iterate(
            flow.follow_changes, self._row, self._ask(*args, **kwargs)
        )
        return gives


class SyncList(SyncRead[P, list[R]]):
    def iterate(self, *args: P.args, **kwargs: P.kwargs) -> Generator[R, None, None]:
        """All records, fetched page by page."""
        gives: Generator[R, None, None] = self._client.iterate(
            flow.iterate_records, self._row, self._ask(*args, **kwargs)
        )
        return gives


class AsyncList(AsyncRead[P, list[R]]):
    def iterate(self, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]:
        """All records, fetched page by page."""
        gives: AsyncGenerator[R, None] = self._client.iterate(
            flow.iterate_records, self._row, self._ask(*args, **kwargs)
        )
        return gives


class _Method:
    def __init__(self, name: str, describe: DescribeCall) -> None:
        self.row = ENDPOINT_BY_NAME[name]
        self.describe = describe
        self.__doc__ = describe.__doc__
        METHODS_BY_ENDPOINT.setdefault(name, []).append((describe.__qualname__, describe))


class ReadMethod(_Method, Generic[P, T]):
    @overload
    def __get__(self, noun: None, owner: type) -> Self: ...
    @overload
    def __get__(self, noun: "MethodGroup[SyncClient]", owner: type) -> SyncRead[P, T]: ...
    @overload
    def __get__(self, noun: "MethodGroup[AsyncClient]", owner: type) -> AsyncRead[P, T]: ...
    def __get__(self, noun: Any, owner: type) -> Any:  # Which of these it is, is told above.
        if noun is None:
            return self
        kind = AsyncRead if noun.client.IS_ASYNC else SyncRead
        return kind(noun.client, noun, self.row, self.describe)


class ListMethod(_Method, Generic[P, R]):
    @overload
    def __get__(self, noun: None, owner: type) -> Self: ...
    @overload
    def __get__(self, noun: "MethodGroup[SyncClient]", owner: type) -> SyncList[P, R]: ...
    @overload
    def __get__(self, noun: "MethodGroup[AsyncClient]", owner: type) -> AsyncList[P, R]: ...
    def __get__(self, noun: Any, owner: type) -> Any:  # Which of these it is, is told above.
        if noun is None:
            return self
        kind = AsyncList if noun.client.IS_ASYNC else SyncList
        return kind(noun.client, noun, self.row, self.describe)


class CallMethod(_Method, Generic[P, T]):
    @overload
    def __get__(self, noun: None, owner: type) -> Self: ...
    @overload
    def __get__(self, noun: "MethodGroup[SyncClient]", owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, noun: "MethodGroup[AsyncClient]", owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, noun: Any, owner: type) -> Any:  # Which of these it is, is told above.
        if noun is None:
            return self

        def method(*args: Any, **kwargs: Any) -> Any:  # As the description.
            return noun.client.perform_call(self.row, self.describe(noun, *args, **kwargs))

        method.__doc__ = self.__doc__
        return method


class StreamMethod(_Method, Generic[P, T]):
    @overload
    def __get__(self, noun: None, owner: type) -> Self: ...
    @overload
    def __get__(self, noun: "MethodGroup[SyncClient]", owner: type) -> Callable[P, Generator[T, None, None]]: ...
    @overload
    def __get__(self, noun: "MethodGroup[AsyncClient]", owner: type) -> Callable[P, AsyncGenerator[T, None]]: ...
    def __get__(self, noun: Any, owner: type) -> Any:  # Which of these it is, is told above.
        if noun is None:
            return self

        def method(*args: Any, **kwargs: Any) -> Any:  # As the description.
            return noun.client.iterate(read_stream, self.row, self.describe(noun, *args, **kwargs))

        method.__doc__ = self.__doc__
        return method


# What stands above a description: the row that it is about, and what it comes back as. A description's first argument is
# its noun, of either client.


def read_method(name: str) -> Callable[[Callable[Concatenate[Any, P], ReadSpec[T]]], ReadMethod[P, T]]:
    return lambda describe: ReadMethod(name, describe)


def list_method(name: str) -> Callable[[Callable[Concatenate[Any, P], ListSpec[R]]], ListMethod[P, R]]:
    return lambda describe: ListMethod(name, describe)


def call_method(name: str) -> Callable[[Callable[Concatenate[Any, P], CallSpec[T]]], CallMethod[P, T]]:
    return lambda describe: CallMethod(name, describe)


def stream_method(name: str) -> Callable[[Callable[Concatenate[Any, P], StreamSpec[T]]], StreamMethod[P, T]]:
    return lambda describe: StreamMethod(name, describe)
