"""Endpoints with the keys that verify signed identities, and the endpoint that creates introduction tokens for nodes."""

from typing import Any, Final

import msgspec

from wharf.contract.model.acl import permissions
from wharf.contract.wire.endpoint import SMALL_BODY_BYTES, Endpoint, define_local, define_write
from wharf.contract.wire.nodes import messages


class KeySetView(msgspec.Struct, frozen=True):
    """The public keys that verify signed identities, as JSON Web Keys (RFC 7517)."""

    keys: list[dict[str, Any]]  # The fields depend on the type of the key.


class IssuerView(msgspec.Struct, frozen=True):
    """The OpenID provider metadata, with the URL of the public keys that verify signed identities."""

    issuer: str  # The URL that identifies the signer.
    jwks_uri: str  # The URL of the public keys.
    response_types_supported: list[str]
    subject_types_supported: list[str]
    id_token_signing_alg_values_supported: list[str]


ROWS: Final[tuple[Endpoint, ...]] = (
    define_write(
        "acl.identity.introduction", "/v1/acl/identity/client-introduction-token", need=permissions.WRITE_NODE,
        summary="Create an introduction token, with which a new node may register.",
        max_body_bytes=SMALL_BODY_BYTES, body_type=messages.IntroductionRequest, is_body_optional=True, reply_type=messages.IntroductionReply,
    ),
    define_local(
        "identity.keys", "/.well-known/jwks.json", need=permissions.PUBLIC_ACCESS,
        summary="Return the public keys that verify workload identities.", reply_type=KeySetView,
    ),
    define_local(
        "identity.issuer", "/.well-known/openid-configuration", need=permissions.PUBLIC_ACCESS,
        summary="Return the OpenID provider metadata with the URL of the public keys.", reply_type=IssuerView,
    ),
)  # fmt: skip
