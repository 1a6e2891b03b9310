"""The caller of a request: the kind of its credential, the owner of its counters, and the facts that ceilings depend
on.

`recognition` builds callers from a credential and the directory. Rules decide which limits apply to a caller.
"""

from enum import Enum
from typing import Final

import msgspec


class CredentialKind(Enum):
    """The kinds of credential that a request can carry."""

    NONE = "none"
    """The request carries no credential."""
    PERSONAL_TOKEN = "personal_token"
    OAUTH_TOKEN = "oauth_token"
    """A token of an authorized app or OAuth app that acts for a user."""
    INSTALLATION_TOKEN = "installation_token"
    APP_USER_TOKEN = "app_user_token"
    CLIENT_SECRET = "client_secret"
    """The client id and client secret of an OAuth app."""
    WORKFLOW_TOKEN = "workflow_token"
    OPAQUE = "opaque"
    """A credential that is not in the directory, and that the service has accepted."""
    RESOLVED = "resolved"
    """A credential whose owner the service, a hook or an identity provider has named."""
    MACHINE = "machine"
    """A node agent or server of the cluster. The endpoint that it calls verifies its certificate or token."""


class CallerClass(Enum):
    """The classes of callers for which a rule can set a ceiling: credential kind and enterprise tier."""

    NONE = "none"
    """Callers without a credential, which are counted by address."""
    USER = "user"
    USER_ENTERPRISE = "user_enterprise"
    INSTALLATION = "installation"
    INSTALLATION_ENTERPRISE = "installation_enterprise"
    CLIENT = "client"
    CLIENT_ENTERPRISE = "client_enterprise"
    WORKFLOW = "workflow"
    WORKFLOW_ENTERPRISE = "workflow_enterprise"
    MACHINE = "machine"
    """Node agents and servers. They are counted and never limited; `lint` rejects a rule that limits them."""

    # Enum.__hash__ is a slow Python function, and each new charge plan looks up ceilings. Members are singletons, so the
    # identity hash is sufficient.
    __hash__ = object.__hash__


LIMITED_CLASSES: Final = tuple(caller_class for caller_class in CallerClass if caller_class is not CallerClass.MACHINE)
"""The classes for which a rule can set a ceiling."""

# The class whose ceiling is used if a rule sets no ceiling for the class itself.
ORDINARY_CLASSES: Final = {
    CallerClass.USER_ENTERPRISE: CallerClass.USER,
    CallerClass.INSTALLATION_ENTERPRISE: CallerClass.INSTALLATION,
    CallerClass.CLIENT_ENTERPRISE: CallerClass.CLIENT,
    CallerClass.WORKFLOW_ENTERPRISE: CallerClass.WORKFLOW,
}


class Caller(msgspec.Struct, frozen=True, kw_only=True, gc=False, cache_hash=True):
    """The sender of a request, at one address, with what rules need to find its limits.

    Callers with equal fields are equal, so two objects for the same caller can be used interchangeably. `owner`,
    `user`, `app` and the other scope fields hold values such as `user:ada`; a field is `None` if the credential has no
    such member.
    """

    kind: CredentialKind
    """The kind of its credential."""
    caller_class: CallerClass
    owner: str
    """The scope value whose primary bucket is charged: the user, installation, app, repository or address."""
    address: str
    """The scope value of the address: `address:192.0.2.7`, or an IPv6 /64 network."""
    network: str = ""
    """The wider network (/24 or /48), whose bucket is shared when too many addresses are counted."""
    display_name: str = ""
    """How messages name the owner: `user ID 5`, `installation ID 71`, or the address."""
    user: str | None = None
    """The user that the credential acts for, such as `user:ada`."""
    app: str | None = None
    installation: str | None = None
    repository: str | None = None
    token: str | None = None
    scopes: tuple[str, ...] = ()
    """The OAuth scopes of the token, which replies list."""
    expires_ms: int | None = None
    """When the token expires; `None` if it does not expire."""
    repositories: int = 0
    """The number of repositories that an installation can access."""
    members: int = 0
    """The number of users in the organization of an installation."""

    @property
    def is_anonymous(self) -> bool:
        return self.kind is CredentialKind.NONE

    @property
    def ban_subject(self) -> str:
        """The scope value that a ban applies to: the app, else the token, else the address; never a whole user."""
        return self.app or self.token or self.address

    def get_scope_value(self, member: str) -> str:
        """Return the value of one member of a rule's scope, such as `user:ada` for `user`.

        Return the owner if `member` is `caller`, or if this credential has no such member.
        """
        if member == "caller":
            return self.owner
        value: str | None = getattr(self, member)
        return value or self.owner
