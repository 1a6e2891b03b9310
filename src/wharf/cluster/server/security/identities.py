"""Signed identities of workloads and joining nodes: signing, verification and public keys.

Signed with the keyring's active key; any key of the keyring verifies. Each token carries its kind, so that one kind
cannot be used as another. What an identity may do is decided in `access`.

Also decides which identities a node may request: those that jobs declare for tasks running on it, and its own.
"""

import hmac
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_der_private_key
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeyParameters, OKPKey, RSAKey

from wharf.cluster.access import InvalidCredential, PresentedCredential, WorkloadClaims
from wharf.cluster.operations.nodes.introductions import Introduction
from wharf.cluster.server.security.keyring import Keyring
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import find_allocation_job
from wharf.cluster.state.tables import ALLOCATIONS, KEYRING, NODE_POOLS
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.cluster import KeyringKey, KeyState
from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.jobs.identities import (
    API_AUDIENCES,
    DEFAULT_AUDIENCE,
    DEFAULT_IDENTITY_NAME,
    WorkloadIdentity,
)
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.node_pools import DEFAULT_NODE_POOL
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found, permission_denied
from wharf.contract.model.times import HOUR, SECOND, DecisionContext
from wharf.world.jose import describe_jose_error, read_key_id, read_unverified_claims

ED25519: Final = "Ed25519"
RS256: Final = "RS256"

SigningKey = OKPKey | RSAKey

WORKLOAD_KIND: Final = "workload"
NODE_KIND: Final = "node"
INTRODUCTION_KIND: Final = "introduction"
KIND_CLAIM: Final = "wharf_identity"
PUBLISHED_KEY_STATES: Final = frozenset({KeyState.ACTIVE, KeyState.INACTIVE, KeyState.REKEYING, KeyState.PREPUBLISHED})
NOT_BEFORE_LEEWAY_S: Final = 10
"""Identities are valid this long before they were signed, because server clocks differ."""


class WorkloadIdentitySpec(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of a workload identity before signing (reference 5.3, rule 7)."""

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


class NodeIdentitySpec(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of a node identity before signing. It grants nothing here; other services can verify it."""

    region: str
    node_id: str
    node_class: str
    node_pool: str
    datacenter: str
    ttl_ns: int

    @property
    def subject(self) -> str:
        return f"node:{self.region}:{self.node_pool}:{self.node_id}:default"


class IdentitySigner:
    """Signs and verifies identities. Implements `IdentityVerifier` of the API."""

    def __init__(self, keyring: Keyring, *, issuer: str = "", own_node_secret: str = "") -> None:
        """`own_node_secret`: accepted from this agent's own node instead of an introduction token."""
        self._keyring = keyring
        self._own_node_secret = own_node_secret.encode()
        self._issuer = issuer
        self._keys: dict[bytes, SigningKey] = {}
        self._decoded_tokens: OrderedDict[tuple[str, bytes], dict[str, Any]] = OrderedDict()

    # -- signing -----------------------------------------------------------------------------------------------------

    def sign_workload(self, snapshot: Replica, workload: WorkloadIdentitySpec, context: DecisionContext) -> str:
        """Return a workload identity as a signed token (JWT)."""
        claims: dict[str, Any] = {
            KIND_CLAIM: WORKLOAD_KIND,
            "sub": workload.subject,
            "jti": workload.jti or context.new_id(),
            "nomad_namespace": workload.namespace,
            "nomad_job_id": workload.job_id,
            "nomad_allocation_id": workload.alloc_id,
        }
        if workload.task:
            claims["nomad_task"] = workload.task
        if workload.audience:
            claims["aud"] = list(workload.audience)
        return self._sign(snapshot, claims, context, ttl_ns=workload.ttl_ns)

    def sign_node(self, snapshot: Replica, node: NodeIdentitySpec, context: DecisionContext) -> str:
        """Return an identity of a node as a signed token (JWT)."""
        claims = {
            KIND_CLAIM: NODE_KIND,
            "sub": node.subject,
            "jti": context.new_id(),
            "aud": "nomadproject.io",
            "nomad_node_id": node.node_id,
            "nomad_node_class": node.node_class,
            "nomad_node_pool": node.node_pool,
            "nomad_node_datacenter": node.datacenter,
        }
        return self._sign(snapshot, claims, context, ttl_ns=node.ttl_ns)

    def sign_introduction(
        self, snapshot: Replica, introduction: Introduction, context: DecisionContext, *, ttl_ns: int
    ) -> str:
        """Return an introduction token, with which a new node may register, valid for `ttl_ns`."""
        claims = {
            KIND_CLAIM: INTRODUCTION_KIND,
            "sub": f"node-introduction:{introduction.node_pool}:{introduction.node_name}",
            "jti": context.new_id(),
            "nomad_node_name": introduction.node_name,
            "nomad_node_pool": introduction.node_pool,
        }
        return self._sign(snapshot, claims, context, ttl_ns=ttl_ns)

    def _sign(self, snapshot: Replica, claims: dict[str, Any], context: DecisionContext, *, ttl_ns: int) -> str:
        """Return the claims as a token, signed with the active key, with times and the issuer added. `ttl_ns` 0: no
        expiry.

        Raises `Refusal` if there is no active key.
        """
        key = self._keyring.find_active_key(snapshot)
        if key is None:
            raise Refusal(RefusalCode.UNAVAILABLE, "the keyring has no active key yet; retry in a few seconds")
        now_s = context.now_ns // SECOND
        claims |= {"iat": now_s, "nbf": now_s - NOT_BEFORE_LEEWAY_S}
        if ttl_ns:
            claims["exp"] = now_s + ttl_ns // SECOND
        if self._issuer:
            claims["iss"] = self._issuer
        signing_key = self._signing_key(key)
        algorithm = get_algorithm(signing_key)
        return jwt.encode({"alg": algorithm, "kid": key.key_id}, claims, signing_key, algorithms=[algorithm])

    # -- checking ----------------------------------------------------------------------------------------------------

    def verify(self, snapshot: Replica, text: str, context: DecisionContext) -> PresentedCredential:
        """Return the claims of a valid workload identity that is meant for this cluster's API, or an `InvalidCredential`
        with the reason.
        """
        try:
            claims = self._verify_claims(snapshot, text, context, identity_kind=WORKLOAD_KIND)
            _check_audience(claims)
        except _InvalidToken as error:
            return InvalidCredential(f"failed to parse signed token: {error}")
        return WorkloadClaims(
            namespace=str(claims.get("nomad_namespace", "")),
            job_id=str(claims.get("nomad_job_id", "")),
            alloc_id=str(claims.get("nomad_allocation_id", "")),
            task=str(claims.get("nomad_task", "")),
        )

    def verify_introduction(self, snapshot: Replica, text: str, context: DecisionContext) -> Introduction | None:
        """Return the introduction that a valid token contains, or `None`.

        The secret of this agent's own node is accepted in place of a token.
        """
        if self._own_node_secret and hmac.compare_digest(text.encode(), self._own_node_secret):
            return Introduction(node_pool="")
        try:
            claims = self._verify_claims(snapshot, text, context, identity_kind=INTRODUCTION_KIND)
        except _InvalidToken:
            return None
        return Introduction(
            node_name=str(claims.get("nomad_node_name", "")), node_pool=str(claims.get("nomad_node_pool", ""))
        )

    def _verify_claims(
        self, snapshot: Replica, text: str, context: DecisionContext, *, identity_kind: str
    ) -> dict[str, Any]:
        """Return the claims of a token if it is valid now and an identity of this kind.

        Raises `_InvalidToken` otherwise.
        """
        if len(text) > MAX_TOKEN_CHARS:
            raise _InvalidToken(f"the token is longer than {MAX_TOKEN_CHARS:,} characters")
        key = snapshot.get(KEYRING, _require_key_id(text))
        if key is None:
            raise _InvalidToken("the token is not signed by a key of this cluster")
        try:
            claims = self._decode_signed(text, key)
            jwt.JWTClaimsRegistry(now=context.now_ns // SECOND).validate(claims)
        except (JoseError, ValueError) as error:
            raise _InvalidToken(describe_jose_error(error, default="invalid signature")) from None
        if claims.get(KIND_CLAIM) != identity_kind:
            raise _InvalidToken(
                f"the token is not an identity of a {identity_kind}"
                if identity_kind == WORKLOAD_KIND
                else f"the token is not a {identity_kind}"
            )
        return claims

    def _decode_signed(self, text: str, key: KeyringKey) -> dict[str, Any]:
        """Return the claims of a token whose signature this key verifies. Raises `JoseError` or `ValueError` if it does not.

        Results are cached, because the same token arrives with every request.
        """
        cached = self._decoded_tokens.get((text, key.wrapped))
        if cached is not None:
            self._decoded_tokens.move_to_end((text, key.wrapped))
            return cached
        signing_key = self._signing_key(key)
        # Use the key's algorithm, never the one that the token names.
        claims = read_unverified_claims(text)
        jwt.decode(text, signing_key, algorithms=[get_algorithm(signing_key)])
        self._decoded_tokens[text, key.wrapped] = claims
        if len(self._decoded_tokens) > MAX_CACHED_TOKENS:
            self._decoded_tokens.popitem(last=False)
        return claims

    # -- keys --------------------------------------------------------------------------------------------------------

    def list_public_keys(self, snapshot: Replica) -> list[dict[str, Any]]:
        """Return the public keys with which other services verify identities, as JSON Web Keys."""
        keys = [self._signing_key(key) for key in snapshot.iter_all(KEYRING) if key.state in PUBLISHED_KEY_STATES]
        return [{**key.as_dict(private=False), "alg": get_algorithm(key), "use": "sig"} for key in keys]

    def list_algorithms(self, snapshot: Replica) -> list[str]:
        """Return the algorithms of the published keys."""
        return list(dict.fromkeys(key["alg"] for key in self.list_public_keys(snapshot))) or [RS256]

    def _signing_key(self, key: KeyringKey) -> SigningKey:
        """Return the signing key that a key of the keyring contains. Unwrapped keys are cached."""
        cached = self._keys.get(key.wrapped)
        if cached is not None:
            return cached
        unwrapped = self._keyring.unwrap_key(key)
        parameters: KeyParameters = {"kid": key.key_id}
        created: SigningKey
        if unwrapped.rsa_key:
            created = RSAKey.import_key(_load_rsa_key(unwrapped.rsa_key), parameters)
        else:
            created = OKPKey.import_key(Ed25519PrivateKey.from_private_bytes(unwrapped.signing_seed), parameters)
        if len(self._keys) >= MAX_CACHED_KEYS:
            self._keys.clear()
        self._keys[key.wrapped] = created
        return created


def get_algorithm(key: SigningKey) -> str:
    return RS256 if isinstance(key, RSAKey) else ED25519


def _load_rsa_key(pkcs8: bytes) -> RSAPrivateKey:
    """Return the RSA private key that the bytes (PKCS #8) contain.

    The keyring created and encrypted it, so the library does not check again that its parts fit, which takes 37 ms.
    """
    loaded = load_der_private_key(pkcs8, password=None, unsafe_skip_rsa_key_validation=True)
    assert isinstance(loaded, RSAPrivateKey), "the keyring stores RSA keys for this algorithm"
    return loaded


MAX_TOKEN_CHARS: Final = 16_384
"""The length of a token. Callers without a token can send what looks like one; to decode 1 MB takes 25 ms."""
MAX_CACHED_KEYS: Final = 64
MAX_CACHED_TOKENS: Final = 2_000


class _InvalidToken(Exception):
    """The token is invalid. The message says why."""


def _check_audience(claims: Mapping[str, Any]) -> None:
    """Check that a workload identity is meant for the cluster's own API. Raises `_InvalidToken` if it is not.

    A service to which a task presents an identity could otherwise use it here, with the rights of the task. The default
    identity of a task is always meant for the cluster.
    """
    audience = claims.get("aud") or ()
    audiences = (audience,) if isinstance(audience, str) else audience
    identity_name = str(claims.get("sub", "")).rpartition(":")[2]
    if audiences and identity_name != DEFAULT_IDENTITY_NAME and API_AUDIENCES.isdisjoint(audiences):
        raise _InvalidToken(
            "the identity is for another audience: use the default identity of the task, "
            f'or add "{DEFAULT_AUDIENCE[0]}" to the Audience of this one'
        )


def _require_key_id(text: str) -> str:
    """Return the key id in the header of a token. Raises `_InvalidToken`."""
    try:
        key_id = read_key_id(text)
    except ValueError:
        raise _InvalidToken("it is not a signed token") from None
    if key_id is None:
        raise _InvalidToken("the token names no key")
    return key_id


DEFAULT_NODE_TTL_NS: Final = 24 * HOUR


def build_workload_specs(
    snapshot: Replica, node: Node, alloc_id: str, task_name: str, names: Sequence[str], *, region: str
) -> list[WorkloadIdentitySpec]:
    """Return the claims of the task's identities with these names.

    Raises `Refusal` unless the allocation runs on the node and the task declares the identities.
    """
    allocation = snapshot.get(ALLOCATIONS, alloc_id)
    if allocation is None:
        raise not_found(f'Unknown allocation "{alloc_id}"')
    if allocation.node_id != node.id:
        raise permission_denied("the allocation is not assigned to the node that requests its identities")
    if allocation.is_terminal:
        raise invalid_request(f"allocation {alloc_id} has ended: only running allocations receive identities")
    job = find_allocation_job(snapshot, allocation)
    task = _find_task(allocation, job, task_name)
    if job is None or task is None:
        raise invalid_request(f'unknown task name "{task_name}"')
    declared = {identity.name: identity for identity in (task.identity or WorkloadIdentity(), *(task.identities or ()))}
    missing = [name for name in names if name not in declared]
    if missing:
        raise invalid_request(f'task "{task_name}" does not declare an identity "{missing[0]}"')
    return [_build_workload_spec(allocation, job, task, declared[name], region=region) for name in names]


def _find_task(allocation: Allocation, job: Job | None, name: str) -> Task | None:
    """Return the task of the allocation's group with this name, or `None`."""
    group = job.find_group(allocation.task_group) if job is not None else None
    return next((task for task in (group.tasks if group else None) or () if task.name == name), None)


def _build_workload_spec(
    allocation: Allocation, job: Job, task: Task, identity: WorkloadIdentity, *, region: str
) -> WorkloadIdentitySpec:
    """Return the claims of one identity that the task declares."""
    return WorkloadIdentitySpec(
        region=region,
        namespace=allocation.namespace,
        job_id=job.parent_id or job.id,
        group=allocation.task_group,
        alloc_id=allocation.id,
        task=task.name,
        name=identity.name or DEFAULT_IDENTITY_NAME,
        audience=identity.audience or (),
        ttl_ns=identity.ttl,
    )


def build_node_spec(snapshot: Replica, node: Node, *, region: str) -> NodeIdentitySpec:
    """Return the claims of a node's own identity, with the lifetime that its node pool sets."""
    pool = snapshot.get(NODE_POOLS, node.node_pool or DEFAULT_NODE_POOL)
    return NodeIdentitySpec(
        region=region,
        node_id=node.id,
        node_class=node.node_class,
        node_pool=node.node_pool or DEFAULT_NODE_POOL,
        datacenter=node.datacenter,
        ttl_ns=pool.node_identity_ttl if pool is not None else DEFAULT_NODE_TTL_NS,
    )
