"""What endpoints of access control answer while it is off."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from wharf.model.refusal import invalid
from wharf.server.access import DISABLED
from wharf.server.server import Server

P = ParamSpec("P")
T = TypeVar("T")


def only_when_on(server: Server, handler: Callable[P, T]) -> Callable[P, T]:
    """The handler, as long as access control is on; else the one sentence."""

    def guarded(*given: P.args, **named: P.kwargs) -> T:
        if not server.access.settings.enabled:
            raise invalid(DISABLED)
        return handler(*given, **named)

    return guarded
