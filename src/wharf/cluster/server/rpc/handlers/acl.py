"""RPC handlers for ACL roles and auth methods.

The leader ensures that names are unique and that each kind has one default.
"""

from typing import Final

import msgspec

from wharf.cluster.operations.acl import auth_methods, roles
from wharf.cluster.operations.acl.auth_methods import AuthMethodWriteResult
from wharf.cluster.operations.acl.roles import RoleWriteResult
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute
from wharf.contract.model.acl.auth_methods import AuthMethod
from wharf.contract.model.acl.roles import Role
from wharf.contract.model.acl.tokens import LifetimeLimits
from wharf.contract.model.secrets import SealedData


class StoreAuthMethodRequest(msgspec.Struct, frozen=True):
    """A request to create or update an auth method."""

    method: AuthMethod
    sealed: SealedData | None
    """The encrypted secrets of the method; `None` keeps the stored ones."""
    bounds: LifetimeLimits
    """Minimum and maximum lifetime of tokens that the method may configure."""


STORE_ROLE: Final = RpcMethod("store-role", Role, RoleWriteResult)
STORE_AUTH_METHOD: Final = RpcMethod("store-auth-method", StoreAuthMethodRequest, AuthMethodWriteResult)


class AclHandlers:
    """Handles the calls of other servers and processes that concern roles and auth methods."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def store_role(self, role: Role) -> RoleWriteResult:
        """Create the role, or update the one with the same id. Raises `Refusal` if its name is taken."""
        return await self._brain.execute(lambda snapshot, context: roles.store_role(snapshot, role, context.new_id))

    async def store_method(self, request: StoreAuthMethodRequest) -> AuthMethodWriteResult:
        """Create the auth method, or update the one with the same name."""
        return await self._brain.execute(
            lambda snapshot, context: auth_methods.store_auth_method(
                snapshot, request.method, context, sealed_secrets=request.sealed, limits=request.bounds
            )
        )


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    """Return the RPC methods of access control with their handlers."""
    handlers = AclHandlers(brain)
    return ((STORE_ROLE, handlers.store_role), (STORE_AUTH_METHOD, handlers.store_method))
