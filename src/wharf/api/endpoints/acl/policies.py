"""Endpoints of policies and roles. Whoever is no management sees those that it carries."""

import msgspec

from wharf.access import CallerKind, InvalidRules, denial, read_rules, rules_json
from wharf.api.answers import Act, Done, Missing, Reading
from wharf.api.listing import Listing, by_name
from wharf.api.request import ReadOptions, Request
from wharf.model.policy import Policy
from wharf.model.refusal import invalid
from wharf.model.role import Role
from wharf.operations import policies
from wharf.server.answering.access import STORE_ROLE
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state import watches as watch
from wharf.state.tables import ACL_POLICIES, ACL_ROLES, ACL_TOKENS, ROLES_BY_NAME
from wharf.wire import access as shapes

POLICY_NOT_FOUND = "ACL policy not found"
ROLE_NOT_FOUND = "ACL role not found"


def policy_list(replica: Replica, request: Request, options: ReadOptions) -> Listing[Policy]:
    return by_name(
        replica,
        ACL_POLICIES,
        options,
        ACL_ROLES,
        ACL_TOKENS,
        shown=policy_stub,
        may_see=lambda policy: _carries_policy(request, policy.name),
    )


def policy_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    name = request.value("name")
    policy = replica.get(ACL_POLICIES, name)
    if not _carries_policy(request, name):
        raise denial(request.caller, request.endpoint.manner)
    watched = [watch.one(ACL_POLICIES, name)]
    if policy is None:
        return Found(Missing(POLICY_NOT_FOUND), replica.last_change(ACL_POLICIES), watched)
    return Found(policy_shown(policy), policy.modify_index, watched)


def policy_self(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    caller = request.caller
    if caller.kind is CallerKind.ANONYMOUS:
        raise denial(caller)
    index, watched = replica.last_change(ACL_POLICIES), [watch.whole(ACL_POLICIES)]
    if caller.rights.is_management:
        return Found(None, index, watched)
    found = [replica.get(ACL_POLICIES, name) for name in caller.policies]
    return Found([policy_shown(policy) for policy in found if policy is not None], index, watched)


def role_list(replica: Replica, request: Request, options: ReadOptions) -> Listing[Role]:
    return by_name(replica, ACL_ROLES, options, ACL_TOKENS, may_see=lambda role: _carries_role(request, role.id))


def role_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    return _role_found(replica, request, replica.get(ACL_ROLES, request.value("role_id")))


def role_read_by_name(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    named = replica.those(ROLES_BY_NAME, request.value("name"))
    return _role_found(replica, request, named[0] if named else None)


def _role_found(replica: Replica, request: Request, role: Role | None) -> Found:
    if not _carries_role(request, role.id if role is not None else ""):
        raise denial(request.caller, request.endpoint.manner)
    if role is None:
        return Found(Missing(ROLE_NOT_FOUND), replica.last_change(ACL_ROLES), [watch.whole(ACL_ROLES)])
    return Found(role, role.modify_index, [watch.one(ACL_ROLES, role.id)])


def _carries_policy(request: Request, name: str) -> bool:
    return request.caller.rights.is_management or name in request.caller.policies


def _carries_role(request: Request, role_id: str) -> bool:
    return request.caller.rights.is_management or any(role.id == role_id for role in request.caller.roles)


class PolicyWrites:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def store(self, request: Request) -> Done:
        name = request.value("name")
        asked = request.read_body(shapes.PolicyRequest)
        if asked.name != name:
            raise invalid("ACL policy name does not match request path")
        wanted = Policy(name=name, description=asked.description, rules=asked.rules, job_acl=asked.job_acl)
        index = await self._server.writer.write(lambda snapshot, _moment: policies.store_policy(snapshot, wanted))
        return Done(None, index)

    async def delete(self, request: Request) -> Done:
        name = request.value("name")
        index = await self._server.writer.write(lambda snapshot, _moment: policies.delete_policy(snapshot, name))
        return Done(None, index)

    async def create_role(self, request: Request) -> Done:
        return await self._store_role(request.read_body(shapes.RoleRequest))

    async def update_role(self, request: Request) -> Done:
        asked = request.read_body(shapes.RoleRequest)
        if asked.id != request.value("role_id"):
            raise invalid("ACL role ID does not match request path")
        return await self._store_role(asked)

    async def _store_role(self, asked: shapes.RoleRequest) -> Done:
        wanted = Role(id=asked.id, name=asked.name, description=asked.description, policies=asked.policies)
        written = await self._server.leader.ask(STORE_ROLE, wanted)
        return Done(written.role, written.index)

    async def delete_role(self, request: Request) -> Done:
        role_id = request.value("role_id")
        index = await self._server.writer.write(lambda snapshot, _moment: policies.delete_role(snapshot, role_id))
        return Done(None, index)


def reads_of(_server: Server) -> dict[str, Reading]:
    return {
        "acl.policy.list": policy_list,
        "acl.policy.read": policy_read,
        "acl.policy.self": policy_self,
        "acl.role.list": role_list,
        "acl.role.read": role_read,
        "acl.role.read-by-name": role_read_by_name,
    }


def acts_of(server: Server) -> dict[str, Act]:
    writes = PolicyWrites(server)
    return {
        "acl.policy.store": writes.store,
        "acl.policy.delete": writes.delete,
        "acl.role.create": writes.create_role,
        "acl.role.update": writes.update_role,
        "acl.role.delete": writes.delete_role,
    }


def policy_stub(policy: Policy) -> shapes.PolicyStub:
    return shapes.PolicyStub(
        name=policy.name,
        description=policy.description,
        job_acl=policy.job_acl,
        hash=policy.hash,
        create_index=policy.create_index,
        modify_index=policy.modify_index,
    )


def policy_shown(policy: Policy) -> shapes.PolicyShown:
    as_json: msgspec.Raw | None
    try:
        as_json = msgspec.Raw(rules_json(read_rules(policy.rules)))
    except InvalidRules:
        as_json = None  # Written by a server that knew another grammar; the text is shown all the same.
    return shapes.PolicyShown(
        name=policy.name,
        description=policy.description,
        rules=policy.rules,
        rules_json=as_json,
        job_acl=policy.job_acl,
        hash=policy.hash,
        create_index=policy.create_index,
        modify_index=policy.modify_index,
    )
