"""Endpoints by which others check the identities that we sign, and nodes are introduced."""

from typing import Any, Final

import msgspec

from wharf.contract.model.acl import permissions
from wharf.contract.wire.endpoint import Endpoint, define_local, define_write
from wharf.contract.wire.nodes import messages


class KeySetView(msgspec.Struct, frozen=True):
    """The public halves of our keys, as JSON Web Keys (RFC 7517)."""

    keys: list[dict[str, Any]]  # What a key says depends on its kind.


class IssuerView(msgspec.Struct, frozen=True):
    """Where our keys are, in the form of OpenID providers."""

    issuer: str
    jwks_uri: str
    response_types_supported: list[str]
    subject_types_supported: list[str]
    id_token_signing_alg_values_supported: list[str]


ROWS: Final[tuple[Endpoint, ...]] = (
    define_write(
        "acl.identity.introduction", "/v1/acl/identity/client-introduction-token", need=permissions.WRITE_NODE,
        summary="Make a token with which a new node may join.",
        body_type=messages.IntroductionRequest, is_body_optional=True, reply_type=messages.IntroductionReply,
    ),
    define_local(
        "identity.keys", "/.well-known/jwks.json", need=permissions.PUBLIC_ACCESS,
        summary="The keys with which identities of workloads are checked.", reply_type=KeySetView,
    ),
    define_local(
        "identity.issuer", "/.well-known/openid-configuration", need=permissions.PUBLIC_ACCESS,
        summary="Where those keys are, as providers of OpenID say it.", reply_type=IssuerView,
    ),
)  # fmt: skip
