"""Functions of hashes, random ids and encrypted texts."""

import base64
import binascii
import hashlib
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from wharf.languages.hcl.budget import MAX_STEPS
from wharf.languages.hcl.calls import CallContext, FunctionError, FunctionSpec, define_function
from wharf.languages.hcl.values import Value

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateNumbers

BCRYPT_DEFAULT_COST: Final = 10
BCRYPT_STEPS: Final = 75
"""The steps of bcrypt with cost 0. Each cost doubles them, so cost 13 is the largest that fits into an evaluation."""
MAX_BCRYPT_BYTES: Final = 72
"""bcrypt ignores all bytes after these."""
RSA_STEPS: Final = 2_000
"""The steps of reading a key."""
RSA_STEPS_PER_BIT: Final = 25
"""The steps of a decryption for each bit of the key. One with a key of the maximum length takes 0.2 s."""
MAX_RSA_BITS: Final = 8_192
MAX_PEM_CHARS: Final = 8_000
"""A key of the maximum length has 6,400 characters. Limits the numbers of a wrong key."""
UUID_BYTES: Final = 16
_NAMESPACES: Final = {
    "dns": uuid.NAMESPACE_DNS,
    "url": uuid.NAMESPACE_URL,
    "oid": uuid.NAMESPACE_OID,
    "x500": uuid.NAMESPACE_X500,
}
_BCRYPT_ALPHABET: Final = "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_BASE64_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def _define_hash(name: str) -> tuple[str, FunctionSpec]:
    def compute(context: CallContext, text: str) -> Value:
        context.budget.use_steps(len(text) >> 6)
        return hashlib.new(name, text.encode(), usedforsecurity=False).hexdigest()

    return define_function(name, "s:text", compute)


def _hash_password(context: CallContext, text: str, cost: int = BCRYPT_DEFAULT_COST) -> Value:
    import bcrypt  # Few documents use it.

    if not 4 <= cost <= 31:
        raise FunctionError("the cost is between 4 and 31", argument=1)
    if BCRYPT_STEPS << cost > MAX_STEPS:
        raise FunctionError("a cost above 13 takes longer than a second", argument=1, fix="write a cost from 4 to 13")
    password = text.encode()
    if len(password) > MAX_BCRYPT_BYTES:
        raise FunctionError(
            f"the text is longer than {MAX_BCRYPT_BYTES} bytes, and bcrypt ignores the rest", argument=0
        )
    context.budget.use_steps(BCRYPT_STEPS << cost)
    salt = base64.b64encode(context.ports.random.draw_bytes(16)).decode().rstrip("=")
    translated = salt.translate(str.maketrans(_BASE64_ALPHABET, _BCRYPT_ALPHABET))
    return bcrypt.hashpw(password, f"$2a${cost:02}${translated}".encode()).decode()


def _draw_uuid(context: CallContext) -> Value:
    context.budget.use_steps(20)
    return str(uuid.UUID(bytes=context.ports.random.draw_bytes(UUID_BYTES), version=4))


def _derive_uuid(_: CallContext, namespace: str, name: str) -> Value:
    if namespace in _NAMESPACES:
        space = _NAMESPACES[namespace]
    else:
        try:
            space = uuid.UUID(namespace)
        except ValueError:
            raise FunctionError("the namespace is dns, url, oid, x500 or a UUID", argument=0) from None
    digest = hashlib.sha1(space.bytes + name.encode(), usedforsecurity=False).digest()
    return str(uuid.UUID(bytes=digest[:UUID_BYTES], version=5))


def _is_consistent(key: "RSAPrivateNumbers") -> bool:
    """Return whether the numbers of a key fit together. Larger ones would make a decryption slow.

    A key whose factors are no primes is accepted: it decrypts nothing.
    """
    p, q, e, n = key.p, key.q, key.public_numbers.e, key.public_numbers.n
    if not (n % 2 and p > 2 and q > 2 and p * q == n and 1 < e < n and 1 < key.d < n):
        return False
    is_inverse = (key.d * e - 1) % (p - 1) == 0 and (key.d * e - 1) % (q - 1) == 0
    is_short = key.dmp1 == key.d % (p - 1) and key.dmq1 == key.d % (q - 1) and key.iqmp < p
    return is_inverse and is_short and key.iqmp * q % p == 1


def _decrypt_rsa(context: CallContext, encoded: str, pem: str) -> Value:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    context.budget.use_steps(RSA_STEPS)
    if len(pem) > MAX_PEM_CHARS:
        raise FunctionError(f"the key is longer than {MAX_PEM_CHARS:,} characters", argument=1)
    try:
        data = base64.b64decode(encoded.encode(), validate=True)
    except (binascii.Error, ValueError):
        raise FunctionError("the encrypted text is not base64", argument=0) from None
    try:
        # The check of the library searches for factors of the primes, which takes 0.3 s for 4,096 bits.
        key = load_pem_private_key(pem.encode(), password=None, unsafe_skip_rsa_key_validation=True)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise FunctionError("the key is not a private key in PEM form without a password", argument=1) from None
    if not isinstance(key, RSAPrivateKey) or key.key_size > MAX_RSA_BITS:
        raise FunctionError(f"the key is not an RSA key of at most {MAX_RSA_BITS:,} bits", argument=1)
    context.budget.use_steps(RSA_STEPS_PER_BIT * key.key_size)
    if not _is_consistent(key.private_numbers()):
        raise FunctionError("the numbers of the key do not belong together", argument=1)
    try:
        return key.decrypt(data, PKCS1v15()).decode()
    except ValueError:
        raise FunctionError("the text was not encrypted for this key, or is not UTF-8", argument=0) from None


FUNCTIONS: Final[Mapping[str, FunctionSpec]] = dict(
    (
        *[_define_hash(name) for name in ("md5", "sha1", "sha256", "sha512")],
        define_function("bcrypt", "s:text cost?:whole", _hash_password),
        define_function("uuidv4", "", _draw_uuid),
        define_function("uuidv5", "namespace:text name:text", _derive_uuid),
        define_function("rsadecrypt", "s:text key:text", _decrypt_rsa),
    )
)
