"""Endpoints of policies and roles. Callers without a management token see those of their own token."""

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from wharf.cluster.access import CallerKind, InvalidPolicy, deny, encode_rules, parse_policy
from wharf.cluster.api.lists.listing import Listing, list_by_name
from wharf.cluster.api.replies.pieces import LazyList
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import (
    ActionHandler,
    ActionResult,
    DeferredValue,
    MissingRecord,
    ReadHandler,
    find_record,
)
from wharf.cluster.operations.acl import policies, roles
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.handlers.acl import STORE_ROLE
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ACL_POLICIES, ACL_ROLES, ACL_TOKENS, ROLES_BY_NAME
from wharf.cluster.state.watches import watch_key, watch_table
from wharf.contract.model.acl.policies import Policy
from wharf.contract.model.acl.roles import Role
from wharf.contract.model.body_limits import cut_echo
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire import acl as acl_wire

POLICY_NOT_FOUND_TEXT: Final = "ACL policy not found"
ROLE_NOT_FOUND_TEXT: Final = "ACL role not found"


POLICY_LIMIT_ADVICE: Final = "divide the policy into several"
OWN_POLICIES_LIMIT_ADVICE: Final = "read the policies one by one, or give the token fewer policies"


def list_policies(replica: Replica, request: Request, options: QueryOptions) -> Listing[Policy]:
    """List the policies that the caller may read."""
    return list_by_name(
        replica,
        ACL_POLICIES,
        options,
        ACL_ROLES,
        ACL_TOKENS,
        build_view=build_policy_stub,
        is_visible=lambda policy: _can_read_policy(request, policy.name),
    )


def read_policy(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """Return the policy of the path, or a missing record. Raises `Refusal` if the caller may not read it."""
    name = request.get_path_value("name")
    if not _can_read_policy(request, name):
        needed = f'the policy "{cut_echo(name)}", or the rights of a management token'
        raise deny(request.caller, needed, request.endpoint.denial_detail)
    policy, index, watched = find_record(replica, ACL_POLICIES, name, missing_text=POLICY_NOT_FOUND_TEXT)
    if isinstance(policy, MissingRecord):
        return ReadResult(policy, index, watched)
    return ReadResult(DeferredValue(lambda _: build_policy_view(policy), POLICY_LIMIT_ADVICE), index, watched)


def list_own_policies(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """Return the policies of the caller's token, or null for a management token.

    Raises `Refusal` for anonymous callers.
    """
    caller = request.caller
    if caller.kind is CallerKind.ANONYMOUS:
        raise deny(caller, "a token with policies")
    index, watched = replica.get_last_change(ACL_POLICIES), [watch_table(ACL_POLICIES)]
    if caller.rights.is_management:
        return ReadResult(None, index, watched)
    records = [replica.get(ACL_POLICIES, name) for name in caller.policies]
    present = [policy for policy in records if policy is not None]
    return ReadResult(DeferredValue(partial(_build_policy_views, present), OWN_POLICIES_LIMIT_ADVICE), index, watched)


def list_roles(replica: Replica, request: Request, options: QueryOptions) -> Listing[Role]:
    return list_by_name(
        replica, ACL_ROLES, options, ACL_TOKENS, is_visible=lambda role: _can_read_role(request, role.id)
    )


def read_role(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    return _build_role_result(replica, request, replica.get(ACL_ROLES, request.get_path_value("role_id")))


def read_role_by_name(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    matches = replica.list_by_index(ROLES_BY_NAME, request.get_path_value("name"))
    return _build_role_result(replica, request, matches[0] if matches else None)


def _build_role_result(replica: Replica, request: Request, role: Role | None) -> ReadResult:
    """Return the role, or a missing record. Raises `Refusal` if the caller may not read it."""
    if not _can_read_role(request, role.id if role is not None else ""):
        raise deny(request.caller, "this role, or the rights of a management token", request.endpoint.denial_detail)
    if role is None:
        return ReadResult(
            MissingRecord(ROLE_NOT_FOUND_TEXT), replica.get_last_change(ACL_ROLES), [watch_table(ACL_ROLES)]
        )
    return ReadResult(role, role.modify_index, [watch_key(ACL_ROLES, role.id)])


def _can_read_policy(request: Request, name: str) -> bool:
    return request.caller.rights.is_management or name in request.caller.policies


def _can_read_role(request: Request, role_id: str) -> bool:
    return request.caller.rights.is_management or any(role.id == role_id for role in request.caller.roles)


class PolicyActions:
    """Writes policies and roles."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def store_policy(self, request: Request) -> ActionResult:
        """Create or replace the policy of the path. Raises `Refusal` if the body names another policy."""
        name = request.get_path_value("name")
        body = request.decode_body(acl_wire.PolicyRequest)
        if body.name != name:
            raise invalid_request("ACL policy name does not match request path")
        policy = Policy(name=name, description=body.description, rules=body.rules, job_acl=body.job_acl)
        index = await self._server.writer.execute(lambda snapshot, _context: policies.store_policy(snapshot, policy))
        return ActionResult(None, index)

    async def delete_policy(self, request: Request) -> ActionResult:
        name = request.get_path_value("name")
        index = await self._server.writer.execute(lambda snapshot, _context: policies.delete_policy(snapshot, name))
        return ActionResult(None, index)

    async def create_role(self, request: Request) -> ActionResult:
        return await self._store_role(request.decode_body(acl_wire.RoleRequest))

    async def update_role(self, request: Request) -> ActionResult:
        """Replace the role of the path. Raises `Refusal` if the body names another role."""
        body = request.decode_body(acl_wire.RoleRequest)
        if body.id != request.get_path_value("role_id"):
            raise invalid_request("ACL role ID does not match request path")
        return await self._store_role(body)

    async def _store_role(self, body: acl_wire.RoleRequest) -> ActionResult:
        role = Role(id=body.id, name=body.name, description=body.description, policies=body.policies)
        result = await self._server.leader.call(STORE_ROLE, role)
        return ActionResult(result.role, result.index)

    async def delete_role(self, request: Request) -> ActionResult:
        role_id = request.get_path_value("role_id")
        index = await self._server.writer.execute(lambda snapshot, _context: roles.delete_role(snapshot, role_id))
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
    actions = PolicyActions(server)
    return {
        "acl.policy.store": actions.store_policy,
        "acl.policy.delete": actions.delete_policy,
        "acl.role.create": actions.create_role,
        "acl.role.update": actions.update_role,
        "acl.role.delete": actions.delete_role,
    }


def build_policy_stub(policy: Policy) -> acl_wire.PolicyStub:
    """Return the policy as lists show it."""
    return acl_wire.PolicyStub(
        name=policy.name,
        description=policy.description,
        job_acl=policy.job_acl,
        hash=policy.hash,
        create_index=policy.create_index,
        modify_index=policy.modify_index,
    )


def _build_policy_views(records: list[Policy], is_over: Callable[[], bool]) -> object:
    """Return the views of the policies, each of which is built when it is encoded."""
    return LazyList(lambda: (build_policy_view(policy) for policy in records if not is_over()))


def build_policy_view(policy: Policy) -> acl_wire.PolicyView:
    """Return the policy with its rules as text and as JSON. The JSON is null if this version cannot parse the rules."""
    rules_json: msgspec.Raw | None
    try:
        rules_json = msgspec.Raw(encode_rules(parse_policy(policy.rules)))
    except InvalidPolicy:
        rules_json = None  # Written by a server of another version; its text is still shown.
    return acl_wire.PolicyView(
        name=policy.name,
        description=policy.description,
        rules=policy.rules,
        rules_json=rules_json,
        job_acl=policy.job_acl,
        hash=policy.hash,
        create_index=policy.create_index,
        modify_index=policy.modify_index,
    )
