"""Functions of hashes, random ids and encrypted texts."""

import base64
import binascii
import hashlib
import uuid
from collections.abc import Mapping
from typing import Final

from wharf.languages.hcl.calls import CallContext, FunctionError, FunctionSpec, define_function
from wharf.languages.hcl.values import Value

BCRYPT_DEFAULT_COST: Final = 10
BCRYPT_STEPS: Final = 75
"""The steps of bcrypt with cost 0. Each cost doubles them, so cost 13 is the largest that fits into an evaluation."""
MAX_BCRYPT_BYTES: Final = 72
"""bcrypt ignores all bytes after these."""
RSA_STEPS: Final = 100_000
"""The steps of one decryption with a key of the maximum length."""
MAX_RSA_BITS: Final = 8_192
MAX_PEM_CHARS: Final = 20_000
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
        key = load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise FunctionError("the key is not a private key in PEM form without a password", argument=1) from None
    if not isinstance(key, RSAPrivateKey) or key.key_size > MAX_RSA_BITS:
        raise FunctionError(f"the key is not an RSA key of at most {MAX_RSA_BITS:,} bits", argument=1)
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
