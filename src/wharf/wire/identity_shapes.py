"""Bodies by which nodes ask for signed identities: of the tasks that they run, and their own."""

import msgspec

from wharf.model.record import Record


class IdentitiesRequest(Record):
    """Of one task of one of the node's allocations; `names` are those of the identities that its job declares."""

    alloc_id: str
    task: str
    names: tuple[str, ...] = ()


class SignedIdentity(Record):
    """`expires`: in ns since the epoch; 0: it holds until its allocation is over."""

    name: str
    jwt: str
    issued: int = 0
    expires: int = 0

    def heard_at(self, now_ns: int) -> "SignedIdentity":
        """Just signed, with its times as the clock of whoever hears it tells them: that of the signer may differ."""
        expires = now_ns + self.expires - self.issued if self.expires else 0
        return msgspec.structs.replace(self, issued=now_ns, expires=expires)

    def __repr__(self) -> str:
        """Without what is secret."""
        return f"SignedIdentity({self.name})"


class IdentitiesReply(Record):
    identities: tuple[SignedIdentity, ...] = ()


class NodeIdentityReply(Record):
    """The node's own."""

    identity: SignedIdentity
    signing_key_id: str = msgspec.field(name="SigningKeyID", default="")
