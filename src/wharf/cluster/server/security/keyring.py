"""The keys that secrets are sealed with and identities are signed with: made, wrapped, unwrapped, used.

They lie in the log, wrapped by a key that does not. Nothing here decides which key is in force or when one goes; that is
told by their records. A key that was unwrapped once is kept in memory, never anywhere else.
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
from wharf.world import World

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
MAX_CACHED_KEYS: Final = 64


class WrongWrappingKey(Exception):
    """The keys in the log were wrapped by another key than this server has. The message says how to mend it."""


class WrappingKey:
    """The key outside of the log. `origin`: the file it was read from, for people."""

    def __init__(self, secret: bytes, *, origin: str = "") -> None:
        assert len(secret) == KEY_BYTES, "a wrapping key has 32 bytes"
        self.cipher = AESGCM(secret)
        self.origin = origin
        self.fingerprint = hashlib.sha256(b"wharf keyring " + secret).hexdigest()[:16]


class KeyMaterial(msgspec.Struct, frozen=True, array_like=True):
    """What a key of the ring is, unwrapped: one secret to seal with, and a pair to sign with: an RSA key (PKCS #8), or
    where that is empty the seed of an Ed25519 one.
    """

    secret: bytes
    signing_seed: bytes
    rsa_key: bytes = b""


class UnwrappedKey(NamedTuple):
    cipher: AESGCM
    signing_seed: bytes
    rsa_key: bytes


RsaKeyFactory = Callable[[], Awaitable[bytes]]
"""A new RSA key, as PKCS #8. It takes a tenth of a second, so it is made elsewhere than on the loop."""


class Keyring:
    """One process's use of the ring. Without a wrapping key it can neither seal nor open, and says so."""

    def __init__(self, world: World, wrapping: WrappingKey | None) -> None:
        self._world = world
        self._wrapping = wrapping
        self._wrappings = {wrapping.fingerprint: wrapping} if wrapping is not None else {}
        self._unwrapped: dict[bytes, UnwrappedKey] = {}
        self.make_rsa_key: RsaKeyFactory | None = None
        """How new keys get an RSA pair to sign with; None: they get an Ed25519 one."""
        self.change_listeners: list[Callable[[], None]] = []
        """Told when other wrapping keys are used."""

    def set_wrapping_keys(self, wrapping: WrappingKey, *others: WrappingKey) -> None:
        """What wraps from now on, known only once the log was read; `others` may have wrapped before, or will later."""
        self._wrapping = wrapping
        self._wrappings = {each.fingerprint: each for each in (wrapping, *others)}
        self._unwrapped.clear()
        for told in self.change_listeners:
            told()

    # -- keys --------------------------------------------------------------------------------------------------------

    async def make_key(self) -> KeyringKey:
        """A new key of the ring, wrapped. It is of use once its record is in the log."""
        self._wrapping_key()  # Said before anything is made.
        rsa_key = await self.make_rsa_key() if self.make_rsa_key is not None else b""
        key_id = self._world.new_secret()
        material = KeyMaterial(self._world.token_bytes(KEY_BYTES), self._world.token_bytes(KEY_BYTES), rsa_key)
        wrapped = self._wrap(key_id, msgspec.msgpack.encode(material))
        return KeyringKey(
            key_id=key_id,
            wrapped=wrapped,
            wrapped_with=self._wrapping_key().fingerprint,
            create_time=self._world.now_ns(),
        )

    def list_foreign_keys(self, snapshot: Replica) -> list[KeyringKey]:
        """The keys that the wrapping key of today does not wrap."""
        fingerprint = self._wrapping_key().fingerprint
        return [key for key in snapshot.iter_all(KEYRING) if key.wrapped_with != fingerprint]

    def rewrap_key(self, key: KeyringKey) -> KeyringKey:
        """The same key, wrapped by the wrapping key of today."""
        wrapped = self._wrap(key.key_id, self._plain(key))
        return msgspec.structs.replace(key, wrapped=wrapped, wrapped_with=self._wrapping_key().fingerprint)

    def check_wrapping_keys(self, replica: Replica) -> None:
        """Raises WrongWrappingKey unless this server can read every key of the ring."""
        wrapping = self._wrapping_key()
        for key in replica.iter_all(KEYRING):
            if key.wrapped_with not in self._wrappings:
                raise WrongWrappingKey(_wrong(wrapping, key))

    def find_active_key(self, snapshot: Replica) -> KeyringKey | None:
        """The key that seals and signs now."""
        return next(iter(snapshot.list_by_index_sorted(KEYRING_KEYS_BY_STATE, KeyState.ACTIVE)), None)

    def unwrap_key(self, key: KeyringKey) -> UnwrappedKey:
        """Raises Refusal where this server's wrapping key is not the one."""
        kept = self._unwrapped.get(key.wrapped)
        if kept is not None:
            return kept
        material = msgspec.msgpack.decode(self._plain(key), type=KeyMaterial)
        if len(self._unwrapped) >= MAX_CACHED_KEYS:
            self._unwrapped.clear()
        unwrapped = UnwrappedKey(AESGCM(material.secret), material.signing_seed, material.rsa_key)
        self._unwrapped[key.wrapped] = unwrapped
        return unwrapped

    def _wrap(self, key_id: str, plain: bytes) -> bytes:
        nonce = self._world.token_bytes(NONCE_BYTES)
        return nonce + self._wrapping_key().cipher.encrypt(nonce, plain, key_id.encode())

    def _plain(self, key: KeyringKey) -> bytes:
        wrapping = self._wrappings.get(key.wrapped_with, self._wrapping_key())
        nonce, sealed = key.wrapped[:NONCE_BYTES], key.wrapped[NONCE_BYTES:]
        try:
            return wrapping.cipher.decrypt(nonce, sealed, key.key_id.encode())
        except InvalidTag:
            raise Refusal(RefusalCode.UNAVAILABLE, _wrong(wrapping, key)) from None

    # -- sealing -----------------------------------------------------------------------------------------------------

    def seal(self, snapshot: Replica, plain: bytes, *, context: str) -> SealedData:
        """`about` names what is sealed: nobody can pass it off as the secret of something else."""
        key = self.find_active_key(snapshot)
        if key is None:
            raise Refusal(RefusalCode.UNAVAILABLE, "the keyring has no active key yet; ask again in a moment")
        nonce = self._world.token_bytes(NONCE_BYTES)
        return SealedData(nonce + self.unwrap_key(key).cipher.encrypt(nonce, plain, context.encode()), key.key_id)

    def open(self, snapshot: Replica, sealed: SealedData, *, context: str) -> bytes:
        key = snapshot.get(KEYRING, sealed.key_id)
        if key is None:
            raise Refusal(
                RefusalCode.UNAVAILABLE, f"the key {sealed.key_id} that this was sealed with is not in the keyring"
            )
        try:
            return self.unwrap_key(key).cipher.decrypt(
                sealed.data[:NONCE_BYTES], sealed.data[NONCE_BYTES:], context.encode()
            )
        except InvalidTag:
            raise Refusal(
                RefusalCode.UNAVAILABLE, "what was sealed cannot be opened: it was changed, or is of another"
            ) from None

    def _wrapping_key(self) -> WrappingKey:
        if self._wrapping is None:
            raise Refusal(
                RefusalCode.UNAVAILABLE, "this server has not read the key of its keyring yet; ask again in a moment"
            )
        return self._wrapping


def _wrong(wrapping: WrappingKey, key: KeyringKey) -> str:
    of_whom = f"the key in {wrapping.origin}" if wrapping.origin else "this server's wrapping key"
    return (
        f"{of_whom} ({wrapping.fingerprint}) is not the one that wraps the keyring in the log ({key.wrapped_with}): "
        "several servers share one file, and a snapshot needs the file of the cluster it was taken of; copy that file "
        "here, or set keyring.file"
    )
