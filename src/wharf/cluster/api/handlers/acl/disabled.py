"""What endpoints of access control answer while it is off."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from wharf.cluster.server.security.access_services import ACL_DISABLED_TEXT
from wharf.cluster.server.server import Server
from wharf.contract.model.refusal import invalid_request

P = ParamSpec("P")
T = TypeVar("T")


def require_acl_enabled(server: Server, handler: Callable[P, T]) -> Callable[P, T]:
    """The handler, as long as access control is on; else the one sentence."""

    def guarded(*given: P.args, **named: P.kwargs) -> T:
        if not server.access.settings.is_enabled:
            raise invalid_request(ACL_DISABLED_TEXT)
        return handler(*given, **named)

    return guarded
