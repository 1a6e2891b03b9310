"""Endpoints of policies and roles. Whoever is no management sees those that it carries."""

import msgspec

from wharf.cluster.access import CallerKind, InvalidPolicy, build_denial, encode_rules, parse_policy
from wharf.cluster.api.lists.listing import Listing, list_by_name
from wharf.cluster.api.requests.request import QueryOptions, Request
from wharf.cluster.api.results import ActionHandler, ActionResult, MissingRecord, ReadHandler
from wharf.cluster.operations.acl import policies, roles
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.handlers.acl import STORE_ROLE
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state import watches as watch
from wharf.cluster.state.tables import ACL_POLICIES, ACL_ROLES, ACL_TOKENS, ROLES_BY_NAME
from wharf.contract.model.acl.policies import Policy
from wharf.contract.model.acl.roles import Role
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire import acl as acl_wire

POLICY_NOT_FOUND = "ACL policy not found"
ROLE_NOT_FOUND = "ACL role not found"


def list_policies(replica: Replica, request: Request, options: QueryOptions) -> Listing[Policy]:
    return list_by_name(
        replica,
        ACL_POLICIES,
        options,
        ACL_ROLES,
        ACL_TOKENS,
        build_view=build_policy_stub,
        is_visible=lambda policy: _carries_policy(request, policy.name),
    )


def read_policy(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    name = request.get_path_value("name")
    policy = replica.get(ACL_POLICIES, name)
    if not _carries_policy(request, name):
        raise build_denial(request.caller, request.endpoint.denial_detail)
    watched = [watch.watch_key(ACL_POLICIES, name)]
    if policy is None:
        return ReadResult(MissingRecord(POLICY_NOT_FOUND), replica.get_last_change(ACL_POLICIES), watched)
    return ReadResult(build_policy_view(policy), policy.modify_index, watched)


def list_own_policies(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    caller = request.caller
    if caller.kind is CallerKind.ANONYMOUS:
        raise build_denial(caller)
    index, watched = replica.get_last_change(ACL_POLICIES), [watch.watch_table(ACL_POLICIES)]
    if caller.rights.is_management:
        return ReadResult(None, index, watched)
    found = [replica.get(ACL_POLICIES, name) for name in caller.policies]
    return ReadResult([build_policy_view(policy) for policy in found if policy is not None], index, watched)


def list_roles(replica: Replica, request: Request, options: QueryOptions) -> Listing[Role]:
    return list_by_name(
        replica, ACL_ROLES, options, ACL_TOKENS, is_visible=lambda role: _carries_role(request, role.id)
    )


def read_role(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    return _role_found(replica, request, replica.get(ACL_ROLES, request.get_path_value("role_id")))


def read_role_by_name(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    named = replica.list_by_index(ROLES_BY_NAME, request.get_path_value("name"))
    return _role_found(replica, request, named[0] if named else None)


def _role_found(replica: Replica, request: Request, role: Role | None) -> ReadResult:
    if not _carries_role(request, role.id if role is not None else ""):
        raise build_denial(request.caller, request.endpoint.denial_detail)
    if role is None:
        return ReadResult(
            MissingRecord(ROLE_NOT_FOUND), replica.get_last_change(ACL_ROLES), [watch.watch_table(ACL_ROLES)]
        )
    return ReadResult(role, role.modify_index, [watch.watch_key(ACL_ROLES, role.id)])


def _carries_policy(request: Request, name: str) -> bool:
    return request.caller.rights.is_management or name in request.caller.policies


def _carries_role(request: Request, role_id: str) -> bool:
    return request.caller.rights.is_management or any(role.id == role_id for role in request.caller.roles)


class PolicyActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def store_policy(self, request: Request) -> ActionResult:
        name = request.get_path_value("name")
        asked = request.decode_body(acl_wire.PolicyRequest)
        if asked.name != name:
            raise invalid_request("ACL policy name does not match request path")
        wanted = Policy(name=name, description=asked.description, rules=asked.rules, job_acl=asked.job_acl)
        index = await self._server.writer.execute(lambda snapshot, _moment: policies.store_policy(snapshot, wanted))
        return ActionResult(None, index)

    async def delete_policy(self, request: Request) -> ActionResult:
        name = request.get_path_value("name")
        index = await self._server.writer.execute(lambda snapshot, _moment: policies.delete_policy(snapshot, name))
        return ActionResult(None, index)

    async def create_role(self, request: Request) -> ActionResult:
        return await self._store_role(request.decode_body(acl_wire.RoleRequest))

    async def update_role(self, request: Request) -> ActionResult:
        asked = request.decode_body(acl_wire.RoleRequest)
        if asked.id != request.get_path_value("role_id"):
            raise invalid_request("ACL role ID does not match request path")
        return await self._store_role(asked)

    async def _store_role(self, asked: acl_wire.RoleRequest) -> ActionResult:
        wanted = Role(id=asked.id, name=asked.name, description=asked.description, policies=asked.policies)
        written = await self._server.leader.call(STORE_ROLE, wanted)
        return ActionResult(written.role, written.index)

    async def delete_role(self, request: Request) -> ActionResult:
        role_id = request.get_path_value("role_id")
        index = await self._server.writer.execute(lambda snapshot, _moment: roles.delete_role(snapshot, role_id))
        return ActionResult(None, index)


def build_read_handlers(_server: Server) -> dict[str, ReadHandler]:
    return {
        "acl.policy.list": list_policies,
        "acl.policy.read": read_policy,
        "acl.policy.self": list_own_policies,
        "acl.role.list": list_roles,
        "acl.role.read": read_role,
        "acl.role.read-by-name": read_role_by_name,
    }


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    writes = PolicyActions(server)
    return {
        "acl.policy.store": writes.store_policy,
        "acl.policy.delete": writes.delete_policy,
        "acl.role.create": writes.create_role,
        "acl.role.update": writes.update_role,
        "acl.role.delete": writes.delete_role,
    }


def build_policy_stub(policy: Policy) -> acl_wire.PolicyStub:
    return acl_wire.PolicyStub(
        name=policy.name,
        description=policy.description,
        job_acl=policy.job_acl,
        hash=policy.hash,
        create_index=policy.create_index,
        modify_index=policy.modify_index,
    )


def build_policy_view(policy: Policy) -> acl_wire.PolicyView:
    as_json: msgspec.Raw | None
    try:
        as_json = msgspec.Raw(encode_rules(parse_policy(policy.rules)))
    except InvalidPolicy:
        as_json = None  # Written by a server that knew another grammar; the text is shown all the same.
    return acl_wire.PolicyView(
        name=policy.name,
        description=policy.description,
        rules=policy.rules,
        rules_json=as_json,
        job_acl=policy.job_acl,
        hash=policy.hash,
        create_index=policy.create_index,
        modify_index=policy.modify_index,
    )
