"""What is asked of the leader about roles and login methods: no two may share a name, and one of a kind is the default."""

from typing import Final

import msgspec

from wharf.cluster.operations.acl import auth_methods, roles
from wharf.cluster.operations.acl.auth_methods import AuthMethodWriteResult
from wharf.cluster.operations.acl.roles import RoleWriteResult
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute
from wharf.contract.model.acl.auth_methods import AuthMethod
from wharf.contract.model.acl.roles import Role
from wharf.contract.model.acl.tokens import DEFAULT_LIFETIME_LIMITS, LifetimeLimits
from wharf.contract.model.secrets import SealedData


class StoreAuthMethodRequest(msgspec.Struct, frozen=True):
    """`sealed`: its secrets; None keeps those that are stored."""

    method: AuthMethod
    sealed: SealedData | None = None
    bounds: LifetimeLimits = DEFAULT_LIFETIME_LIMITS


STORE_ROLE: Final = RpcMethod("store-role", Role, RoleWriteResult)
STORE_AUTH_METHOD: Final = RpcMethod("store-auth-method", StoreAuthMethodRequest, AuthMethodWriteResult)


class AclHandlers:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def store_role(self, wanted: Role) -> RoleWriteResult:
        return await self._brain.execute(lambda snapshot, moment: roles.store_role(snapshot, wanted, moment.new_id))

    async def store_method(self, asked: StoreAuthMethodRequest) -> AuthMethodWriteResult:
        return await self._brain.execute(
            lambda snapshot, moment: auth_methods.store_auth_method(
                snapshot, asked.method, moment, sealed_secrets=asked.sealed, limits=asked.bounds
            )
        )


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    access = AclHandlers(brain)
    return ((STORE_ROLE, access.store_role), (STORE_AUTH_METHOD, access.store_method))
