"""Relaying of writes to global records, which are made in the authoritative region and replicated from there.

The caller is checked twice: here by the replicated records, and again in the authoritative region.
"""

from typing import Final

import msgspec

from wharf.cluster.api.relay.members import build_relayed_request, build_relayed_result
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionResult
from wharf.cluster.operations.acl.logins import find_login_method
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import ACL_TOKENS
from wharf.contract.model.acl.auth_methods import AuthMethodType, TokenLocality
from wharf.contract.model.refusal import Refusal
from wharf.contract.wire import acl as acl_wire

GLOBAL_WRITE_ENDPOINTS: Final = frozenset((
    "acl.bootstrap", "acl.policy.store", "acl.policy.delete", "acl.role.create", "acl.role.update", "acl.role.delete",
    "acl.method.create", "acl.method.update", "acl.method.delete", "acl.rule.create", "acl.rule.update",
    "acl.rule.delete", "namespace.store", "namespace.update", "namespace.delete", "node_pool.store",
    "node_pool.update", "node_pool.delete", "quota.store", "quota.update", "quota.delete",
))  # fmt: skip


def should_relay_write(server: Server, request: Request) -> bool:
    """Return whether the request must be relayed, because it writes global records and this region is not
    authoritative.
    """
    if server.owns_global_records:
        return False
    return request.endpoint.name in GLOBAL_WRITE_ENDPOINTS or _writes_global_token(server, request)


def _writes_global_token(server: Server, request: Request) -> bool:
    """Return whether the request creates, changes or deletes a global token."""
    match request.endpoint.name:
        case "acl.token.create" | "acl.token.update":
            body = request.decode_body(acl_wire.TokenRequest)
            return body.global_ or _is_global_token(server, body.accessor_id)
        case "acl.token.delete":
            return _is_global_token(server, request.get_path_value("accessor_id"))
        case "acl.login":
            login = request.decode_body(acl_wire.LoginRequest)
            return _creates_global_tokens(server, login.auth_method_name, AuthMethodType.JWT)
        case "acl.oidc.complete":
            completion = request.decode_body(acl_wire.CompleteAuthRequest)
            return _creates_global_tokens(server, completion.auth_method_name, AuthMethodType.OIDC)
        case "acl.oidc.auth-url":
            # A login must begin in the region that completes it.
            beginning = request.decode_body(acl_wire.AuthUrlRequest)
            return _creates_global_tokens(server, beginning.auth_method_name, AuthMethodType.OIDC)
    return False


def _is_global_token(server: Server, accessor_id: str) -> bool:
    """Return whether this region's replica has the token and it is global."""
    token = server.replica.get(ACL_TOKENS, accessor_id)
    return token is not None and token.global_


def _creates_global_tokens(server: Server, method_name: str, method_type: AuthMethodType) -> bool:
    """Return whether logins with the auth method create tokens that are valid in all regions.

    An empty name means the default method of the type. An unknown method creates none: this region refuses the login.
    """
    try:
        method = find_login_method(server.replica, method_name, method_type)
    except Refusal:
        return False
    return method.token_locality == TokenLocality.GLOBAL


async def relay_to_authoritative_region(server: Server, request: Request, *, method: str) -> ActionResult:
    """Relay the request to the authoritative region and return its reply.

    The request names the region, so that a server of another region does not execute it. Raises `Refusal` if no server
    there replies.
    """
    region = server.access.settings.authoritative_region
    relayed_request = build_relayed_request(request, method=method, changed_parameters={"region": region})
    reply = await server.relay.send_to_region(region, relayed_request)
    index = next((int(value) for name, value in reply.headers if name == b"x-cluster-index"), 0)  # It was checked.
    return msgspec.structs.replace(await build_relayed_result(reply), index=index)
