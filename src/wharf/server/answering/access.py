"""What is asked of the leader about roles and login methods: no two may share a name, and one of a kind is the default."""

from typing import Final

import msgspec

from wharf.model.auth_method import AuthMethod
from wharf.model.role import Role
from wharf.model.secret import Sealed
from wharf.model.token import DEFAULT_LIFETIME_BOUNDS, LifetimeBounds
from wharf.operations import auth_methods, policies
from wharf.operations.auth_methods import MethodWritten
from wharf.operations.policies import RoleWritten
from wharf.server.brain import Brain
from wharf.server.subject import AnsweredBy, Subject


class MethodToStore(msgspec.Struct, frozen=True):
    """`sealed`: its secrets; None keeps those that are stored."""

    method: AuthMethod
    sealed: Sealed | None = None
    bounds: LifetimeBounds = DEFAULT_LIFETIME_BOUNDS


STORE_ROLE: Final = Subject("store-role", Role, RoleWritten)
STORE_METHOD: Final = Subject("store-auth-method", MethodToStore, MethodWritten)


class AccessAnswers:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def store_role(self, wanted: Role) -> RoleWritten:
        return await self._brain.decide(lambda snapshot, moment: policies.store_role(snapshot, wanted, moment.new_id))

    async def store_method(self, asked: MethodToStore) -> MethodWritten:
        return await self._brain.decide(
            lambda snapshot, moment: auth_methods.store_method(
                snapshot, asked.method, moment, sealed=asked.sealed, bounds=asked.bounds
            )
        )


def answers_of(brain: Brain) -> tuple[AnsweredBy, ...]:
    access = AccessAnswers(brain)
    return ((STORE_ROLE, access.store_role), (STORE_METHOD, access.store_method))
