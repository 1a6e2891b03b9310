"""Keys that others supply for logins: key sets of identity providers, and PEM keys of auth methods.

Sizes are checked before a library gets a key, because its cost grows with the third power of the size. Of a key set only
the public members are read. Fetching of key sets and verification of tokens are in `logins`.
"""

import base64
import re
from functools import lru_cache
from typing import Final

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, KeySet, OKPKey, RSAKey

from wharf.cluster.server.security.jose import decode_base64url, describe_jose_error
from wharf.contract.model.body_limits import cut_echo

MAX_LOGIN_KEYS: Final = 100
"""The keys of one identity provider or auth method. All of them are tried, each for 0.05 ms, on a token that names no known key."""
MAX_RSA_KEY_BITS: Final = 8_192
"""The longest RSA key of an identity provider or auth method; limits the CPU time of checking one signature."""
MAX_RSA_EXPONENT_BITS: Final = 64
"""A check of a signature takes 0.1 ms with an ordinary exponent, and 6 ms with one that is as long as its key."""
MAX_SIGNING_KEY_BITS: Final = 4_096
"""The longest private RSA key of an auth method: a signature takes 3 ms. With 8,192 bits it takes 33 ms."""
MAX_MEMBER_CHARS: Final = 2_048
"""The longest text in a key of a key set. The number of the longest RSA key has 1,366 characters."""
MAX_KEY_OPERATIONS: Final = 100
"""The operations that a key of a key set may name. Limits the work of checking each of them; the standard has 8."""
MAX_PEM_CHARS: Final = 16_384
"""The longest PEM text of one key. The longest RSA key has 6,400 characters."""
MAX_CACHED_KEY_SETS: Final = 16
"""Limits the memory of parsed key sets. Parsing one of the largest size takes 4 ms."""
VERIFYING_CURVES: Final = frozenset(("P-256", "P-384", "P-521", "Ed25519", "Ed448"))
PRIVATE_RSA_PATTERN: Final = re.compile(
    r"-----BEGIN (?P<label>(?:RSA )?PRIVATE KEY)-----\s+(?P<data>[A-Za-z0-9+/=\s]{80,})-----END (?P=label)-----"
)
RSA_ALGORITHM: Final = bytes.fromhex("06092a864886f70d010101")
"""The encoded name of RSA in a private key that can be of any type (PKCS #8)."""
MAX_ALGORITHM_POSITION: Final = 24
"""Bytes before the end of the name in such a key."""


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


def read_key_set(body: bytes, url: str) -> KeySet:
    """Return the public keys in this JSON Web Key set, which comes from the URL. Raises `UnusableKeys`."""
    return _require_keys(_parse_key_set(body, url))


def load_pem_keys(texts: tuple[str, ...]) -> KeySet:
    """Return the public keys of an auth method, from PEM texts. Raises `UnusableKeys` if one cannot be used."""
    return _require_keys(_parse_pem_keys(texts))


def _require_keys(keys: KeySet | str) -> KeySet:
    if isinstance(keys, str):
        raise UnusableKeys(keys)
    return keys


@lru_cache(maxsize=MAX_CACHED_KEY_SETS)
def _parse_key_set(body: bytes, url: str) -> KeySet | str:
    """Return the keys, or why they cannot be used. An error is a result, so that it is cached too.

    Keys of unknown types and curves are left out (RFC 7517, section 5).
    """
    try:
        document = msgspec.json.decode(body, type=_KeySetDocument)
        if len(document.keys) > MAX_LOGIN_KEYS:
            return f"{url} has {len(document.keys)} keys, more than {MAX_LOGIN_KEYS}"
        keys = [msgspec.json.decode(key, type=_KeyMembers) for key in document.keys]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"cannot read the keys at {url}: {cut_echo(str(error))}"
    found = []
    for members in keys:
        if members.kty != "RSA" and members.crv not in VERIFYING_CURVES:
            continue
        if problem := _find_member_problem(members):
            return f"cannot use the keys at {url}: {problem}"
        try:
            found.append(JWKRegistry.import_key(msgspec.to_builtins(members)))
        except (JoseError, ValueError, KeyError, TypeError) as error:
            return f"cannot read the keys at {url}: {describe_jose_error(error, default='wrong key')}"
    if not found:
        return f"{url} has no public key of a supported type: RSA, EC with P-256, P-384 or P-521, or OKP with Ed25519"
    return KeySet(found)


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
    return _find_rsa_problem(_count_bits(members.n), _count_bits(members.e))


def _count_bits(number: str | None) -> int:
    """Return the length of an encoded number; 0 if it is not one, which the library refuses."""
    try:
        return int.from_bytes(decode_base64url(number or "")).bit_length()
    except ValueError:
        return 0


def _find_rsa_problem(key_bits: int, exponent_bits: int) -> str:
    """Return why signatures of a public RSA key take too long to check; empty if they do not."""
    if key_bits > MAX_RSA_KEY_BITS:
        return f"an RSA key has {key_bits} bits, more than {MAX_RSA_KEY_BITS}"
    if exponent_bits > MAX_RSA_EXPONENT_BITS:
        return f"the exponent of an RSA key has {exponent_bits} bits, more than {MAX_RSA_EXPONENT_BITS}"
    return ""


@lru_cache(maxsize=MAX_CACHED_KEY_SETS)
def _parse_pem_keys(texts: tuple[str, ...]) -> KeySet | str:
    """Return the keys, or why they cannot be used."""
    if len(texts) > MAX_LOGIN_KEYS:
        return f"the auth method has {len(texts)} public keys, more than {MAX_LOGIN_KEYS}"
    found: list[RSAKey | ECKey | OKPKey] = []
    for text in texts:
        if len(text) > MAX_PEM_CHARS:
            return f"a public key of the auth method has {len(text):,} characters, more than {MAX_PEM_CHARS:,}"
        key = _load_public_key(text)
        if key is None:
            return "cannot read a public key of the auth method: expected PEM"
        if isinstance(key, RSAKey):
            numbers = key.public_key.public_numbers()
            if problem := _find_rsa_problem(numbers.n.bit_length(), numbers.e.bit_length()):
                return f"cannot use a public key of the auth method: {problem}"
        found.append(key)
    return KeySet(found)  # type: ignore[arg-type]  # a list of one kind each is asked for, and any kind is taken


def _load_public_key(text: str) -> RSAKey | ECKey | OKPKey | None:
    """Return the public key of a PEM text; `None` if it is invalid or of an unsupported type."""
    try:
        key = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        return None
    match key:
        case RSAPublicKey():
            return RSAKey.import_key(key)
        case EllipticCurvePublicKey():
            return ECKey.import_key(key)
        case Ed25519PublicKey():
            return OKPKey.import_key(key)
    return None


def load_assertion_key(text: str) -> RSAKey:
    """Return the private RSA key of a PEM text. Raises `UnusableKeys`.

    Only text that looks like an RSA key gets to the library: a DSA key of 340 kB would take it 80 s. The library does not check
    that the parts of the key fit, which takes 37 ms for 2,048 bits and 260 ms for 4,096. With parts that do not fit, the
    provider rejects the signature.
    """
    if len(text) > MAX_PEM_CHARS:
        raise UnusableKeys(f"it has {len(text):,} characters, more than {MAX_PEM_CHARS:,}")
    found = PRIVATE_RSA_PATTERN.search(text)
    if found is None or not _is_rsa(found["label"], found["data"]):
        raise UnusableKeys("expected an RSA key in PEM form, without a password")
    try:
        key = load_pem_private_key(found[0].encode(), password=None, unsafe_skip_rsa_key_validation=True)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UnusableKeys(str(error)) from None
    if not isinstance(key, RSAPrivateKey):
        raise UnusableKeys("expected an RSA key")
    numbers = key.private_numbers()
    bits = max(key.key_size, numbers.d.bit_length(), 2 * numbers.p.bit_length(), 2 * numbers.q.bit_length())
    if bits > MAX_SIGNING_KEY_BITS:
        raise UnusableKeys(f"it has {bits} bits, more than {MAX_SIGNING_KEY_BITS}")
    return RSAKey.import_key(key)


def _is_rsa(label: str, data: str) -> bool:
    """Return whether the encoded data of a private key is an RSA key."""
    if label == "RSA PRIVATE KEY":
        return True
    try:
        begin = base64.b64decode("".join(data[:80].split())[:40])
    except ValueError:
        return False
    return RSA_ALGORITHM in begin[:MAX_ALGORITHM_POSITION]
