"""JSON Web Key sets that others supply: reads the public keys with which tokens are verified.

Sizes are checked before a library gets a key, because its cost grows with the third power of the size. Only the public members
are read. Fetching key sets and verifying tokens is the work of the callers.
"""

from typing import Final

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey

from wharf.world.jose import decode_base64url, describe_jose_error

MAX_KEYS: Final = 100
"""The keys of one supplier. All of them may be tried on a token, each for 0.05 ms."""
MAX_RSA_KEY_BITS: Final = 8_192
"""The longest RSA key; limits the CPU time of checking one signature."""
MAX_RSA_EXPONENT_BITS: Final = 64
"""A check of a signature takes 0.1 ms with an ordinary exponent, and 6 ms with one that is as long as its key."""
MAX_MEMBER_CHARS: Final = 2_048
"""The longest text in a key. The number of the longest RSA key has 1,366 characters."""
MAX_KEY_OPERATIONS: Final = 100
"""The operations that a key may name. Limits the work of checking each of them; the standard has 8."""
MAX_REASON_CHARS: Final = 200
"""The longest reason of a decoder in an error text: it may contain a part of the key set."""
VERIFYING_CURVES: Final = frozenset(("P-256", "P-384", "P-521", "Ed25519", "Ed448"))

VerifyingKey = RSAKey | ECKey | OKPKey


class UnusableKeys(Exception):
    """Keys cannot be used. The message says why."""


class _KeyMembers(msgspec.Struct, frozen=True, omit_defaults=True):
    """The members of a JSON Web Key that are read. All others, such as those of private keys, are ignored."""

    kty: str | None = None
    kid: str | None = None
    use: str | None = None
    alg: str | None = None
    key_ops: list[str] | None = None
    n: str | None = None
    e: str | None = None
    crv: str | None = None
    x: str | None = None
    y: str | None = None


class _KeySetDocument(msgspec.Struct, frozen=True):
    """A JSON Web Key set, as far as it is read. Its keys are decoded once they are counted."""

    keys: list[msgspec.Raw]


def read_public_keys(body: bytes, source: str) -> list[VerifyingKey]:
    """Return the public keys in this JSON Web Key set. Raises `UnusableKeys`.

    Keys of unknown types and curves are left out (RFC 7517, section 5). `source` is the URL or file that the key set comes from,
    for error texts. The largest set takes 4 ms.
    """
    try:
        document = msgspec.json.decode(body, type=_KeySetDocument)
        if len(document.keys) > MAX_KEYS:
            raise UnusableKeys(f"{source} has {len(document.keys)} keys, more than {MAX_KEYS}")
        keys = [msgspec.json.decode(key, type=_KeyMembers) for key in document.keys]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableKeys(f"cannot read the keys at {source}: {_cut_reason(str(error))}") from None
    found: list[VerifyingKey] = []
    for members in keys:
        if members.kty != "RSA" and members.crv not in VERIFYING_CURVES:
            continue
        if problem := _find_member_problem(members):
            raise UnusableKeys(f"cannot use the keys at {source}: {problem}")
        try:
            key = JWKRegistry.import_key(msgspec.to_builtins(members))
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise UnusableKeys(
                f"cannot read the keys at {source}: {describe_jose_error(error, default='wrong key')}"
            ) from None
        if isinstance(key, RSAKey | ECKey | OKPKey):
            found.append(key)
    if not found:
        raise UnusableKeys(
            f"{source} has no public key of a supported type: RSA, EC with P-256, P-384 or P-521, or OKP with Ed25519"
        )
    return found


def _cut_reason(text: str) -> str:
    return text if len(text) <= MAX_REASON_CHARS else text[:MAX_REASON_CHARS] + "..."


def _find_member_problem(members: _KeyMembers) -> str:
    """Return why a key is too large to be imported; empty if it is not."""
    texts = (getattr(members, name) or "" for name in ("kid", "use", "alg", "n", "e", "x", "y"))
    longest = max((*map(len, texts), *map(len, members.key_ops or ())))
    if longest > MAX_MEMBER_CHARS:
        return f"a member of a key has {longest:,} characters, more than {MAX_MEMBER_CHARS:,}"
    if len(members.key_ops or ()) > MAX_KEY_OPERATIONS:
        return f"a key has more than {MAX_KEY_OPERATIONS} operations"
    if members.kty != "RSA":
        return ""
    return find_rsa_problem(_count_bits(members.n), _count_bits(members.e))


def _count_bits(number: str | None) -> int:
    """Return the length of an encoded number; 0 if it is not one, which the library refuses."""
    try:
        return int.from_bytes(decode_base64url(number or "")).bit_length()
    except ValueError:
        return 0


def find_rsa_problem(key_bits: int, exponent_bits: int) -> str:
    """Return why signatures of a public RSA key take too long to check; empty if they do not."""
    if key_bits > MAX_RSA_KEY_BITS:
        return f"an RSA key has {key_bits} bits, more than {MAX_RSA_KEY_BITS}"
    if exponent_bits > MAX_RSA_EXPONENT_BITS:
        return f"the exponent of an RSA key has {exponent_bits} bits, more than {MAX_RSA_EXPONENT_BITS}"
    return ""
