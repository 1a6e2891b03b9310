"""What a page function gets and returns, and which one serves an address."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, Final, Protocol
from urllib.parse import unquote

import msgspec

from wharf.contract.client.async_client import AsyncClient
from wharf.contract.model.acl.sessions import SignInProvider
from wharf.world import World

ALL_NAMESPACES: Final = "*"
DEFAULT_NAMESPACE: Final = "default"


class PageSessions(Protocol):
    """Finds the token with which a browser is signed in, and the providers at which people sign in."""

    @property
    def state_index(self) -> int:
        """The log index of the state of this process."""
        ...

    @property
    def is_required(self) -> bool:
        """Whether people must sign in: while access control is on."""
        ...

    def find_token_secret(self, session_secret: str) -> str:
        """Return the secret of the token of a session; empty if there is no valid session with this secret."""
        ...

    def find_rights_key(self, session_secret: str) -> Hashable:
        """Return a value that is equal for sessions whose tokens have the same rights, and for browsers without a session."""
        ...

    def find_session_id(self, session_secret: str) -> str:
        """Return the public ID of a session; empty if there is no session with this secret."""
        ...

    async def wait_until_ended(self, session_secret: str) -> None:
        """Wait until there is no valid session with this secret."""
        ...

    def list_providers(self, origin: str) -> Sequence[SignInProvider]:
        """Return the identity providers that may send browsers back to pages, for pages at the address `origin`."""
        ...


class Visitor(msgspec.Struct, frozen=True):
    """The browser that asks for a page."""

    session_id: str = ""
    """The public ID of the browser's session; empty if it is not signed in."""
    can_sign_in: bool = False
    """Whether pages need a sign-in, while access control is on."""
    is_protected: bool = False
    """Whether nobody can read a cookie on the way: the browser speaks TLS, or is on this machine."""
    is_secure: bool = False
    """Whether the browser speaks TLS, at least with a proxy in front of this server."""
    address: str = ""
    browser: str = ""

    @property
    def is_signed_in(self) -> bool:
        return bool(self.session_id)


class PageRequest(msgspec.Struct, frozen=True):
    """A request for a page."""

    client: AsyncClient
    """Calls the API with the credentials of the person who looks at the page."""
    path: str
    query: Mapping[str, str]
    path_values: Mapping[str, str]
    form: Mapping[str, str]
    now_ns: int
    visitor: Visitor
    is_from_foreign_page: bool
    """Whether a link or a form of a page of another site leads here."""
    connect: Callable[[str], AsyncClient]
    """Returns a client of the API that authenticates with a token."""
    world: World
    origin: str
    """The address at which the browser has opened the pages, such as `https://wharf.example`; empty if it is not valid."""
    pending_sign_in: str
    """What the browser stored when its person went to an identity provider; empty if there is nothing."""
    providers: Callable[[], Sequence[SignInProvider]]
    """Returns the identity providers at which people can sign in."""

    @property
    def namespace(self) -> str:
        """The namespace of a page about one object."""
        return self.query.get("namespace") or DEFAULT_NAMESPACE

    @property
    def listed_namespace(self) -> str:
        """The namespace of a list; `*` for all that the person may read."""
        return self.query.get("namespace") or ALL_NAMESPACES


class Page(msgspec.Struct, frozen=True):
    """A page: its template with the values that it shows."""

    template: str
    title: str
    view: Any
    section: str = ""
    """The entry of the menu that is marked."""
    topics: tuple[str, ...] = ()
    """The topics of the event stream after whose events the page is out of date: `Job`, `Job:web` for one object, or
    `Allocation:*rows` for what belongs to the rows of the page, whose `data-row` has the key."""
    namespace: str = ""
    """The namespace in which the forms of the page have an effect; empty: that of the address, or the default one."""
    rights_path: str = ""
    """The path of the variable, or the name of the node pool, that the forms of the page are about."""
    has_rights_anywhere: bool = False
    """Whether a right on any object is enough for the forms of the page: they create objects, and name them."""
    refresh_pause_s: int = 0
    """The shortest time between two updates of the page, if it is not the usual one: for pages that are large."""
    status: int = 200
    command: str = ""
    """The command that shows the same in a terminal."""
    api_path: str = ""
    """The request of the API that shows the same."""
    has_menu: bool = True
    """Whether the page has the menu and the search. The sign-in has none, so that no secret is typed into the search."""
    has_inline_styles: bool = False
    """Whether the browser must accept styles that scripts make: for the terminal only."""


class Redirect(msgspec.Struct, frozen=True):
    """The answer to a form: the browser goes to another page."""

    location: str
    notice: str = ""
    """A sentence that the next page shows."""
    session: str | None = None
    """The secret of a new session for the browser's cookie; empty: the browser is signed out."""
    pending_sign_in: str | None = None
    """What the browser stores while its person is at an identity provider; empty: it deletes this."""


class PageStream(msgspec.Struct, frozen=True):
    """A reply that is sent in parts: a download, or a stream of events for the script of a page."""

    parts: AsyncGenerator[bytes, None]
    content_type: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


PageFunction = Callable[[PageRequest], Awaitable[Page | Redirect | PageStream]]


class Route(msgspec.Struct, frozen=True):
    """A page: its path below `/ui`, in which `{name}` is a value, and its function."""

    pattern: str
    serve: PageFunction
    method: str = "GET"
    is_shared: bool = False
    """Whether everybody with the same rights gets the same page, so that its updates are built once for all."""


class PageRouter:
    """Routes by the number of their segments, which is fixed for each page."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes: dict[tuple[str, int], list[tuple[tuple[str, ...], Route]]] = {}
        for route in routes:
            segments = _split(route.pattern)
            self._routes.setdefault((route.method, len(segments)), []).append((segments, route))
        for candidates in self._routes.values():
            # Fixed segments win over values: `/jobs/run` is a page of its own, not the job "run".
            candidates.sort(key=lambda candidate: tuple(segment.startswith("{") for segment in candidate[0]))

    def find(self, method: str, raw_path: str) -> tuple[Route | None, Mapping[str, str]]:
        """Return the route of a path below `/ui` with the values of its segments, or `None`.

        Segments are split before they are decoded, so that a name may contain `%2F`.
        """
        segments = _split(raw_path.removeprefix("/ui"))
        for pattern, route in self._routes.get((method, len(segments)), ()):
            values: dict[str, str] = {}
            for expected, segment in zip(pattern, segments, strict=True):
                if expected.startswith("{"):
                    values[expected[1:-1]] = unquote(segment)
                elif expected != segment:
                    break
            else:
                return route, values
        return None, {}


def _split(path: str) -> tuple[str, ...]:
    """Return the segments of a path; a slash at the end makes none."""
    return tuple(path.strip("/").split("/")) if path.strip("/") else ()
