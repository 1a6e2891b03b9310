"""Signed identities: of workloads, and of nodes that are about to join. Signed by the keyring's active key, checked by any.

What an identity may do is not decided here; that it is ours, and of what kind, is. Each says its kind, so that none can
be taken for another.
"""

import base64
import hmac
import json
from collections import OrderedDict
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_der_private_key
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeyParameters, OKPKey, RSAKey

from wharf.access import Presented, Unverified, WorkloadClaims
from wharf.model.cluster import KeyringKey, KeyState
from wharf.model.durations import SECOND
from wharf.model.moment import Moment
from wharf.model.refusal import Code, Refusal
from wharf.operations.introductions import Introduction
from wharf.server.keyring import Keyring
from wharf.state import Replica
from wharf.state.tables import KEYRING

ED25519: Final = "Ed25519"
RS256: Final = "RS256"

SigningKey = OKPKey | RSAKey

WORKLOAD: Final = "workload"
NODE: Final = "node"
INTRODUCTION: Final = "introduction"
KIND_CLAIM: Final = "wharf_identity"
PUBLISHED: Final = frozenset({KeyState.ACTIVE, KeyState.INACTIVE, KeyState.REKEYING, KeyState.PREPUBLISHED})
BEFORE_S: Final = 10
"""So much earlier than signed an identity holds already: clocks of servers differ."""


class WorkloadToSign(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes the claims of a workload's identity (reference 5.3, rule 7)."""

    region: str
    namespace: str
    job_id: str
    group: str
    alloc_id: str
    task: str = ""
    name: str = "default"
    audience: tuple[str, ...] = ()
    ttl_ns: int = 0  # 0: it holds until its allocation is over.
    jti: str = ""

    @property
    def subject(self) -> str:
        return ":".join((self.region, self.namespace, self.job_id, self.group, self.task, self.name))


class NodeToSign(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes the claims of a node's identity. It opens nothing here: others may want to know who asks them."""

    region: str
    node_id: str
    node_class: str
    node_pool: str
    datacenter: str
    ttl_ns: int

    @property
    def subject(self) -> str:
        return f"node:{self.region}:{self.node_pool}:{self.node_id}:default"


class Identities:
    """Implements the port of the gate (`api.gate.Verifier`)."""

    def __init__(self, ring: Keyring, *, issuer: str = "", own_node_secret: str = "") -> None:
        """`own_node_secret`: what the node of our own agent shows in place of a signed introduction."""
        self._ring = ring
        self._own_node_secret = own_node_secret.encode()
        self._issuer = issuer
        self._keys: dict[bytes, SigningKey] = {}
        self._signed: OrderedDict[tuple[str, bytes], dict[str, Any]] = OrderedDict()

    # -- signing -----------------------------------------------------------------------------------------------------

    def sign_workload(self, snapshot: Replica, workload: WorkloadToSign, moment: Moment) -> str:
        claims: dict[str, Any] = {
            KIND_CLAIM: WORKLOAD,
            "sub": workload.subject,
            "jti": workload.jti or moment.new_id(),
            "nomad_namespace": workload.namespace,
            "nomad_job_id": workload.job_id,
            "nomad_allocation_id": workload.alloc_id,
        }
        if workload.task:
            claims["nomad_task"] = workload.task
        if workload.audience:
            claims["aud"] = list(workload.audience)
        return self._sign(snapshot, claims, moment, ttl_ns=workload.ttl_ns)

    def sign_node(self, snapshot: Replica, node: NodeToSign, moment: Moment) -> str:
        claims = {
            KIND_CLAIM: NODE,
            "sub": node.subject,
            "jti": moment.new_id(),
            "aud": "nomadproject.io",
            "nomad_node_id": node.node_id,
            "nomad_node_class": node.node_class,
            "nomad_node_pool": node.node_pool,
            "nomad_node_datacenter": node.datacenter,
        }
        return self._sign(snapshot, claims, moment, ttl_ns=node.ttl_ns)

    def sign_introduction(self, snapshot: Replica, introduction: Introduction, moment: Moment, *, ttl_ns: int) -> str:
        claims = {
            KIND_CLAIM: INTRODUCTION,
            "sub": f"node-introduction:{introduction.node_pool}:{introduction.node_name}",
            "jti": moment.new_id(),
            "nomad_node_name": introduction.node_name,
            "nomad_node_pool": introduction.node_pool,
        }
        return self._sign(snapshot, claims, moment, ttl_ns=ttl_ns)

    def _sign(self, snapshot: Replica, claims: dict[str, Any], moment: Moment, *, ttl_ns: int) -> str:
        key = self._ring.active_key(snapshot)
        if key is None:
            raise Refusal(Code.UNAVAILABLE, "the keyring has no active key yet; ask again in a moment")
        now_s = moment.now_ns // SECOND
        claims |= {"iat": now_s, "nbf": now_s - BEFORE_S}
        if ttl_ns:
            claims["exp"] = now_s + ttl_ns // SECOND
        if self._issuer:
            claims["iss"] = self._issuer
        signing = self._signing_key(key)
        algorithm = algorithm_of(signing)
        return jwt.encode({"alg": algorithm, "kid": key.key_id}, claims, signing, algorithms=[algorithm])

    # -- checking ----------------------------------------------------------------------------------------------------

    def verify(self, snapshot: Replica, text: str, moment: Moment) -> Presented:
        """The workload that an identity proves, or why it proves none."""
        try:
            claims = self._claims(snapshot, text, moment, kind=WORKLOAD)
        except _Unproven as why:
            return Unverified(f"failed to parse signed token: {why}")
        return WorkloadClaims(
            namespace=str(claims.get("nomad_namespace", "")),
            job_id=str(claims.get("nomad_job_id", "")),
            alloc_id=str(claims.get("nomad_allocation_id", "")),
            task=str(claims.get("nomad_task", "")),
        )

    def introduction(self, snapshot: Replica, text: str, moment: Moment) -> Introduction | None:
        """The introduction that a node shows; None where it is none that holds."""
        if self._own_node_secret and hmac.compare_digest(text.encode(), self._own_node_secret):
            return Introduction(node_pool="")
        try:
            claims = self._claims(snapshot, text, moment, kind=INTRODUCTION)
        except _Unproven:
            return None
        return Introduction(
            node_name=str(claims.get("nomad_node_name", "")), node_pool=str(claims.get("nomad_node_pool", ""))
        )

    def _claims(self, snapshot: Replica, text: str, moment: Moment, *, kind: str) -> dict[str, Any]:
        key = snapshot.get(KEYRING, _key_id_of(text))
        if key is None:
            raise _Unproven("it is not signed by a key of this cluster")
        try:
            claims = self._signed_claims(text, key)
            jwt.JWTClaimsRegistry(now=moment.now_ns // SECOND).validate(claims)
        except (JoseError, ValueError) as error:
            raise _Unproven(_said(error)) from None
        if claims.get(KIND_CLAIM) != kind:
            raise _Unproven(f"it is no identity of a {kind}" if kind == WORKLOAD else f"it is no {kind}")
        return claims

    def _signed_claims(self, text: str, key: KeyringKey) -> dict[str, Any]:
        """What is signed. The same text is shown at every request and every wake: its signature is checked once."""
        kept = self._signed.get((text, key.wrapped))
        if kept is not None:
            self._signed.move_to_end((text, key.wrapped))
            return kept
        signing = self._signing_key(key)
        # The key says by what it signs, never the text that is checked.
        claims: dict[str, Any] = jwt.decode(text, signing, algorithms=[algorithm_of(signing)]).claims
        self._signed[text, key.wrapped] = claims
        if len(self._signed) > SIGNED_KEPT_MAX:
            self._signed.popitem(last=False)
        return claims

    # -- keys --------------------------------------------------------------------------------------------------------

    def public_keys(self, snapshot: Replica) -> list[dict[str, Any]]:
        """What others check our signatures with, as JSON Web Keys."""
        keys = [self._signing_key(key) for key in snapshot.all(KEYRING) if key.state in PUBLISHED]
        return [{**key.as_dict(private=False), "alg": algorithm_of(key), "use": "sig"} for key in keys]

    def algorithms(self, snapshot: Replica) -> list[str]:
        """By what the identities of today may be signed."""
        return list(dict.fromkeys(key["alg"] for key in self.public_keys(snapshot))) or [RS256]

    def _signing_key(self, key: KeyringKey) -> SigningKey:
        kept = self._keys.get(key.wrapped)
        if kept is not None:
            return kept
        unwrapped = self._ring.unwrap(key)
        about: KeyParameters = {"kid": key.key_id}
        made: SigningKey
        if unwrapped.rsa_key:
            made = RSAKey.import_key(_rsa_of(unwrapped.rsa_key), about)
        else:
            made = OKPKey.import_key(Ed25519PrivateKey.from_private_bytes(unwrapped.signing_seed), about)
        if len(self._keys) >= KEPT_MAX:
            self._keys.clear()
        self._keys[key.wrapped] = made
        return made


def algorithm_of(key: SigningKey) -> str:
    return RS256 if isinstance(key, RSAKey) else ED25519


def _rsa_of(pkcs8: bytes) -> RSAPrivateKey:
    read = load_der_private_key(pkcs8, password=None)
    assert isinstance(read, RSAPrivateKey), "the ring holds what was made for it"
    return read


KEPT_MAX: Final = 64
SIGNED_KEPT_MAX: Final = 2_000


class _Unproven(Exception):
    """Why an identity does not hold."""


def _key_id_of(text: str) -> str:
    """Which key a signed text says it is signed with."""
    header = text.partition(".")[0]
    try:
        decoded = json.loads(_unpadded(header))
    except (ValueError, RecursionError):
        raise _Unproven("it is no signed token") from None
    key_id = decoded.get("kid") if isinstance(decoded, dict) else None
    if not isinstance(key_id, str):
        raise _Unproven("it names no key")
    return key_id


def _unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _said(error: Exception) -> str:
    description = getattr(error, "description", "") or str(error)
    return str(description).strip().rstrip(":") or "its signature does not hold"
