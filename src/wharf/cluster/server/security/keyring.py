"""The keyring: creates, wraps and unwraps keys, and encrypts secrets with them.

The keys are stored in the log, wrapped (encrypted) by a key outside of it. Their records decide which key is active
and when one is deleted. Unwrapped keys exist in memory only.
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import KEYRING, KEYRING_KEYS_BY_STATE
from wharf.contract.model.cluster import KeyringKey, KeyState
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.secrets import SealedData
from wharf.contract.model.wrapping_keys import KEY_BYTES
from wharf.world import World

NONCE_BYTES: Final = 12
MAX_CACHED_KEYS: Final = 64
"""Limits the memory for unwrapped keys."""


class WrongWrappingKey(Exception):
    """Another wrapping key than this server's wraps the keys in the log. The message says how to fix it."""


class WrappingKey:
    """The key that encrypts the keys of the keyring. It is in a file or in the configuration, not in the log.

    `origin`: the path of that file, or the name of the setting, for messages.
    """

    def __init__(self, secret: bytes, *, origin: str = "") -> None:
        assert len(secret) == KEY_BYTES, "a wrapping key has 32 bytes"
        self.cipher = AESGCM(secret)
        self.origin = origin
        self.fingerprint = hashlib.sha256(b"wharf keyring " + secret).hexdigest()[:16]


class KeyMaterial(msgspec.Struct, frozen=True, array_like=True):
    """The secret content of a keyring key. The order of the fields is the stored format."""

    secret: bytes
    """Encrypts secrets (AES-GCM)."""
    signing_seed: bytes
    """Seed of an Ed25519 signing key; used if `rsa_key` is empty."""
    rsa_key: bytes = b""
    """RSA signing key (PKCS #8), or empty."""


class UnwrappedKey(NamedTuple):
    """A keyring key, decrypted: its cipher for secrets and its signing key."""

    cipher: AESGCM
    signing_seed: bytes
    rsa_key: bytes


RsaKeyFactory = Callable[[], Awaitable[bytes]]
"""Creates an RSA key, as PKCS #8. Takes a tenth of a second, so it must not run in the loop."""


class Keyring:
    """Creates keys and encrypts and decrypts secrets with them. Without a wrapping key, every use raises `Refusal`."""

    def __init__(self, world: World, wrapping_key: WrappingKey | None) -> None:
        self._world = world
        self._current_wrapping_key = wrapping_key
        self._wrapping_keys = {wrapping_key.fingerprint: wrapping_key} if wrapping_key is not None else {}
        self._unwrapped_keys: dict[bytes, UnwrappedKey] = {}
        self.make_rsa_key: RsaKeyFactory | None = None
        """Creates the RSA signing key of a new key; `None`: new keys sign with Ed25519."""
        self.change_listeners: list[Callable[[], None]] = []
        """Called when the wrapping keys change."""

    def set_wrapping_keys(self, wrapping_key: WrappingKey, *other_keys: WrappingKey) -> None:
        """Encrypt keys with `wrapping_key` from now on; use the other keys only to decrypt.

        Calls `change_listeners`.
        """
        self._current_wrapping_key = wrapping_key
        self._wrapping_keys = {known_key.fingerprint: known_key for known_key in (wrapping_key, *other_keys)}
        self._unwrapped_keys.clear()
        for listener in self.change_listeners:
            listener()

    # -- keys --------------------------------------------------------------------------------------------------------

    async def make_key(self) -> KeyringKey:
        """Return a new wrapped key. It can be used once its record is in the log."""
        self._require_wrapping_key()  # Fail early, before a key is created.
        rsa_key = await self.make_rsa_key() if self.make_rsa_key is not None else b""
        key_id = self._world.new_secret()
        material = KeyMaterial(self._world.token_bytes(KEY_BYTES), self._world.token_bytes(KEY_BYTES), rsa_key)
        wrapped = self._wrap(key_id, msgspec.msgpack.encode(material))
        return KeyringKey(
            key_id=key_id,
            wrapped=wrapped,
            wrapped_with=self._require_wrapping_key().fingerprint,
            create_time=self._world.now_ns(),
        )

    def list_foreign_keys(self, snapshot: Replica) -> list[KeyringKey]:
        """Return the keyring keys that are encrypted with a wrapping key other than the current one."""
        fingerprint = self._require_wrapping_key().fingerprint
        return [key for key in snapshot.iter_all(KEYRING) if key.wrapped_with != fingerprint]

    def rewrap_key(self, key: KeyringKey) -> KeyringKey:
        """Return the keyring key, encrypted with the current wrapping key.

        Raises `Refusal` if it cannot be decrypted.
        """
        wrapped = self._wrap(key.key_id, self._decrypt_key(key))
        return msgspec.structs.replace(key, wrapped=wrapped, wrapped_with=self._require_wrapping_key().fingerprint)

    def list_wrapping_keys(self) -> list[str]:
        """Return the fingerprints of the wrapping keys that this server has."""
        return list(self._wrapping_keys)

    def check_wrapping_keys(self, replica: Replica) -> None:
        """Raise `WrongWrappingKey` unless this server can unwrap every key of the keyring."""
        wrapping_key = self._require_wrapping_key()
        for key in replica.iter_all(KEYRING):
            if key.wrapped_with not in self._wrapping_keys:
                raise WrongWrappingKey(_describe_wrong_key(wrapping_key, key))

    def find_active_key(self, snapshot: Replica) -> KeyringKey | None:
        """Return the keyring key that encrypts and signs now, or `None` if there is none."""
        return next(iter(snapshot.list_by_index_sorted(KEYRING_KEYS_BY_STATE, KeyState.ACTIVE)), None)

    def unwrap_key(self, key: KeyringKey) -> UnwrappedKey:
        """Return the keyring key decrypted.

        Raises `Refusal` if this server lacks its wrapping key. Results are cached.
        """
        cached = self._unwrapped_keys.get(key.wrapped)
        if cached is not None:
            return cached
        material = msgspec.msgpack.decode(self._decrypt_key(key), type=KeyMaterial)
        if len(self._unwrapped_keys) >= MAX_CACHED_KEYS:
            self._unwrapped_keys.clear()
        unwrapped = UnwrappedKey(AESGCM(material.secret), material.signing_seed, material.rsa_key)
        self._unwrapped_keys[key.wrapped] = unwrapped
        return unwrapped

    def _wrap(self, key_id: str, plain: bytes) -> bytes:
        """Return the key material encrypted with the current wrapping key."""
        nonce = self._world.token_bytes(NONCE_BYTES)
        return nonce + self._require_wrapping_key().cipher.encrypt(nonce, plain, key_id.encode())

    def _decrypt_key(self, key: KeyringKey) -> bytes:
        """Return the decrypted key material of a keyring key.

        Raises `Refusal` if this server lacks its wrapping key.
        """
        wrapping_key = self._wrapping_keys.get(key.wrapped_with, self._require_wrapping_key())
        nonce, sealed = key.wrapped[:NONCE_BYTES], key.wrapped[NONCE_BYTES:]
        try:
            return wrapping_key.cipher.decrypt(nonce, sealed, key.key_id.encode())
        except InvalidTag:
            raise Refusal(RefusalCode.UNAVAILABLE, _describe_wrong_key(wrapping_key, key)) from None

    # -- sealing -----------------------------------------------------------------------------------------------------

    def seal(self, snapshot: Replica, plain: bytes, *, context: str) -> SealedData:
        """Return `plain` encrypted with the active key. Raises `Refusal` if there is no active key.

        `context` names the record that the secret belongs to: the data can be decrypted only with the same context.
        """
        key = self.find_active_key(snapshot)
        if key is None:
            raise Refusal(RefusalCode.UNAVAILABLE, "the keyring has no active key yet; retry in a few seconds")
        nonce = self._world.token_bytes(NONCE_BYTES)
        return SealedData(nonce + self.unwrap_key(key).cipher.encrypt(nonce, plain, context.encode()), key.key_id)

    def open(self, snapshot: Replica, sealed: SealedData, *, context: str) -> bytes:
        """Return the decrypted content of sealed data.

        Raises `Refusal` if the key is unknown or the data or context differ.
        """
        key = snapshot.get(KEYRING, sealed.key_id)
        if key is None:
            raise Refusal(RefusalCode.UNAVAILABLE, f"cannot decrypt: key {sealed.key_id} is not in the keyring")
        try:
            return self.unwrap_key(key).cipher.decrypt(
                sealed.data[:NONCE_BYTES], sealed.data[NONCE_BYTES:], context.encode()
            )
        except InvalidTag:
            raise Refusal(
                RefusalCode.UNAVAILABLE, "cannot decrypt: the data were changed or belong to another record"
            ) from None

    def _require_wrapping_key(self) -> WrappingKey:
        """Return the current wrapping key. Raises `Refusal` if it was not read yet."""
        if self._current_wrapping_key is None:
            raise Refusal(
                RefusalCode.UNAVAILABLE,
                "this server has not read the wrapping key of its keyring yet; retry in a few seconds",
            )
        return self._current_wrapping_key


def _describe_wrong_key(wrapping_key: WrappingKey, key: KeyringKey) -> str:
    """Return the error text about a keyring key that the wrapping key of this server cannot decrypt."""
    own_key_text = f"the key in {wrapping_key.origin}" if wrapping_key.origin else "this server's wrapping key"
    return (
        f"{own_key_text} ({wrapping_key.fingerprint}) is not the one that wraps the keyring in the log ({key.wrapped_with}): "
        "all servers of a cluster need the same key, and a snapshot needs the key of its cluster; copy the file keyring.key "
        "of another server here, or set keyring.file or keyring.secret"
    )
