"""Writes of what is global: made in the authoritative region, from where they come back as copies.

Says which writes these are, and passes them on. Whoever asks is checked here first, by the copies, and again there.
"""

from typing import Final

import msgspec

from wharf.cluster.api.relay.members import build_relayed_request, build_relayed_result
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionResult
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import ACL_AUTH_METHODS, ACL_TOKENS
from wharf.contract.model.acl.auth_methods import TokenLocality
from wharf.contract.wire import acl as acl_wire

GLOBAL_WRITE_ENDPOINTS: Final = frozenset((
    "acl.bootstrap", "acl.policy.store", "acl.policy.delete", "acl.role.create", "acl.role.update", "acl.role.delete",
    "acl.method.create", "acl.method.update", "acl.method.delete", "acl.rule.create", "acl.rule.update",
    "acl.rule.delete", "namespace.store", "namespace.update", "namespace.delete", "node_pool.store",
    "node_pool.update", "node_pool.delete", "quota.store", "quota.update", "quota.delete",
))  # fmt: skip


def should_relay_write(server: Server, request: Request) -> bool:
    """Whether this write is the authoritative region's, and that is not ours."""
    settings = server.access.settings
    if not settings.is_enabled or settings.authoritative_region in ("", server.identity.region):
        return False
    return request.endpoint.name in GLOBAL_WRITE_ENDPOINTS or _is_of_global_token(server, request)


def _is_of_global_token(server: Server, request: Request) -> bool:
    match request.endpoint.name:
        case "acl.token.create" | "acl.token.update":
            asked = request.decode_body(acl_wire.TokenRequest)
            return asked.global_ or _is_global(server, asked.accessor_id)
        case "acl.token.delete":
            return _is_global(server, request.get_path_value("accessor_id"))
        case "acl.login":
            return _gives_global(server, request.decode_body(acl_wire.LoginRequest).auth_method_name)
        case "acl.oidc.complete":
            return _gives_global(server, request.decode_body(acl_wire.CompleteAuthRequest).auth_method_name)
        case "acl.oidc.auth-url":
            # Where the login is completed, it must have been begun.
            return _gives_global(server, request.decode_body(acl_wire.AuthUrlRequest).auth_method_name)
    return False


def _is_global(server: Server, accessor_id: str) -> bool:
    token = server.replica.get(ACL_TOKENS, accessor_id)
    return token is not None and token.global_


def _gives_global(server: Server, method_name: str) -> bool:
    method = server.replica.get(ACL_AUTH_METHODS, method_name)
    return method is not None and method.token_locality == TokenLocality.GLOBAL


async def relay_to_authoritative_region(server: Server, request: Request, *, method: str) -> ActionResult:
    """The reply of the authoritative region. Raises Refusal where none of its servers answers."""
    outgoing = build_relayed_request(request, method=method, excluded_parameters=("region",))
    arrived = await server.relay.send_to_region(server.access.settings.authoritative_region, outgoing)
    index = next((int(value) for name, value in arrived.headers if name.lower() == b"x-cluster-index"), 0)
    return msgspec.structs.replace(await build_relayed_result(arrived), index=index)
