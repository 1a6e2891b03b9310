"""Refusal of the endpoints of access control while it is off."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from wharf.cluster.server.security.access_services import ACL_DISABLED_TEXT
from wharf.cluster.server.server import Server
from wharf.contract.model.refusal import RefusalReason, invalid_request

P = ParamSpec("P")
T = TypeVar("T")


def require_acl_enabled(server: Server, handler: Callable[P, T]) -> Callable[P, T]:
    """Return `handler` wrapped: the wrapper raises `Refusal` while access control is off."""

    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        if not server.access.settings.is_enabled:
            raise invalid_request(ACL_DISABLED_TEXT, RefusalReason.ACL_DISABLED)
        return handler(*args, **kwargs)

    return guarded
