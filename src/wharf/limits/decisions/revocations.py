"""Revokes unlisted credentials, for operators and for the webhook of the service.

What a revocation changes about a credential is in `wharf.limits.credentials`.
"""

import hmac
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec

from wharf.limits.config.settings import LimiterSettings
from wharf.limits.core.responses import JSON_TYPE
from wharf.limits.credentials import UnlistedCredentials
from wharf.limits.decisions.overrides import OperatorOverrides
from wharf.limits.decisions.record_publisher import RecordPublisher
from wharf.limits.decisions.replies import ReplyRenderer
from wharf.limits.decisions.requests import IncomingRequest, LocalReply
from wharf.limits.stores.port import StoreUnavailable

MAX_REVOKED: Final = 1_000
"""Credentials or users that one request revokes; limits how long it holds the event loop."""


class RevocationRequest(msgspec.Struct, frozen=True):
    """The JSON body of a request that revokes credentials. At most `MAX_REVOKED` of each."""

    credentials: Annotated[list[str], msgspec.Meta(max_length=MAX_REVOKED)] = []
    """Tokens, or user names and passwords as `name:password`."""
    users: Annotated[list[str], msgspec.Meta(max_length=MAX_REVOKED)] = []
    """Logins: all credentials of these users are resolved again."""
    hashes: Annotated[
        list[Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]], msgspec.Meta(max_length=MAX_REVOKED)
    ] = []
    """Keyed hashes, as `wharf limits top` shows them after `credential:`."""


class CredentialRevoker:
    """Revokes credentials and users in all processes, and serves the webhook that does so."""

    def __init__(
        self,
        unlisted: UnlistedCredentials,
        settings: LimiterSettings,
        overrides: OperatorOverrides,
        records: RecordPublisher,
        replies: ReplyRenderer,
        now_ms: Callable[[], int],
    ) -> None:
        self._unlisted = unlisted
        self._path = settings.credentials.revocation_path
        self._secret = settings.credentials.revocation_secret
        self._overrides = overrides
        self._records = records
        self._replies = replies
        self._now_ms = now_ms

    def is_revocation(self, incoming: IncomingRequest) -> bool:
        """Return whether a request is for the path that revokes credentials."""
        return bool(self._path) and incoming.path == self._path and incoming.method == "POST"

    def is_authorized(self, incoming: IncomingRequest) -> bool:
        """Return whether a request carries the secret of the webhook."""
        return hmac.compare_digest((incoming.authorization or "").encode(), f"Bearer {self._secret}".encode())

    async def revoke(self, subjects: Sequence[str]) -> None:
        """Forget what is known about credentials and users, in all processes.

        `subjects` come from `UnlistedCredentials.list_subjects`. Raises `StoreUnavailable`.
        """
        now_ms = self._now_ms()
        for subject in subjects:
            self._unlisted.apply_revocation(subject, now_ms)
        await self._overrides.share_revocations(subjects, now_ms)

    async def serve(self, incoming: IncomingRequest, body: bytes) -> LocalReply:
        """Revoke the credentials and users in the body of an authorized request, and return the reply: 200, 400 or 503."""
        try:
            request = msgspec.json.decode(body, type=RevocationRequest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            message = f"The body does not name credentials to revoke: {error}."
            return await self._replies.render_error(incoming, 400, message)
        subjects = self._unlisted.list_subjects(
            credentials=request.credentials, users=request.users, hashes=request.hashes
        )
        try:
            await self.revoke(subjects)
        except StoreUnavailable:
            message = "The revocation is in force in this process only: repeat it."
            return await self._replies.render_error(incoming, 503, message)
        # Not the number of subjects: a credential has one for each carrier that changes its hash.
        count = len(request.credentials) + len(request.users) + len(request.hashes)
        self._records.write_audit_entry("credentials revoked", by="webhook", count=count, users=request.users)
        return LocalReply(200, (("content-type", JSON_TYPE),), msgspec.json.encode({"revoked": count}))
