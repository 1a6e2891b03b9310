"""Sessions of pages: a browser is signed in with a token, and holds a secret of its own instead of the token's."""

import datetime

import msgspec

from wharf.contract.model.record import Record
from wharf.contract.model.times import has_passed, to_ns


class PageSession(Record):
    """A browser that is signed in with a token. Only a digest of its secret is stored.

    It has the rights that the token has at the moment, and ends with the token.
    """

    secret_digest: str  # SHA-256 in hex of the secret in the browser's cookie; never in a reply.
    id: str = ""  # Public: names the session without revealing its secret.
    accessor_id: str = ""  # The token with which the person has signed in.
    token_digest: str = ""  # The digest of that token's secret. A token with another secret is another token.
    created_at: datetime.datetime
    expires_at: datetime.datetime
    address: str = ""  # The address of the browser when it signed in.
    browser: str = ""  # What the browser says that it is.
    create_index: int = 0
    modify_index: int = 0

    def is_expired(self, now_ns: int) -> bool:
        """Return whether the session has ended by time."""
        due_ns = to_ns(self.expires_at)
        return has_passed(due_ns, max(0, due_ns - to_ns(self.created_at)), now_ns)


class SignInProvider(msgspec.Struct, frozen=True):
    """An identity provider at which people can sign in at the pages: an OIDC auth method."""

    name: str
    """The name of the auth method."""
    redirect_uri: str
    """The page to which the provider sends the browser back. Empty if the auth method allows none at the address at which the
    browser has opened the pages."""
