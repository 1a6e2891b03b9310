"""Keys that others supply for logins: key sets of identity providers, and PEM keys of auth methods.

Sizes are checked before a library gets a key, because its cost grows with the third power of the size. `wharf.world.key_sets`
does so for key sets. Fetching of key sets and verification of tokens are in `logins`.
"""

import base64
import re
from functools import lru_cache
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey

from wharf.world.key_sets import MAX_KEYS, UnusableKeys, find_rsa_problem, read_public_keys

MAX_LOGIN_KEYS: Final = MAX_KEYS
"""The keys of one identity provider or auth method."""
MAX_CACHED_KEY_SETS: Final = 16
"""Limits the memory of parsed key sets. Parsing one of the largest size takes 4 ms."""
MAX_SIGNING_KEY_BITS: Final = 4_096
"""The longest private RSA key of an auth method: a signature takes 3 ms. With 8,192 bits it takes 33 ms."""
MAX_PEM_CHARS: Final = 16_384
"""The longest PEM text of one key. The longest RSA key has 6,400 characters."""
PRIVATE_RSA_PATTERN: Final = re.compile(
    r"-----BEGIN (?P<label>(?:RSA )?PRIVATE KEY)-----\s+(?P<data>[A-Za-z0-9+/=\s]{80,})-----END (?P=label)-----"
)
RSA_ALGORITHM: Final = bytes.fromhex("06092a864886f70d010101")
"""The encoded name of RSA in a private key that can be of any type (PKCS #8)."""
MAX_ALGORITHM_POSITION: Final = 24
"""Bytes before the end of the name in such a key."""


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
    """Return the keys, or why they cannot be used. An error is a result, so that it is cached too."""
    try:
        return KeySet(list(read_public_keys(body, url)))
    except UnusableKeys as error:
        return str(error)


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
            if problem := find_rsa_problem(numbers.n.bit_length(), numbers.e.bit_length()):
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
