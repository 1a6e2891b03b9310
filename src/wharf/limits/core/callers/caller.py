"""Who is calling: the kind of credential, whose use is counted, and the facts that a ceiling depends on.

A caller is made by `recognition` out of a credential and the directory. It holds facts only; what they are worth is
for the rules to say.
"""

from enum import Enum
from typing import Final

import msgspec


class CredentialKind(Enum):
    """The seven kinds of credential."""

    NONE = "none"
    PERSONAL_TOKEN = "personal_token"
    OAUTH_TOKEN = "oauth_token"
    """A token of an authorized app or OAuth app, acting for a user."""
    INSTALLATION_TOKEN = "installation_token"
    APP_USER_TOKEN = "app_user_token"
    CLIENT_SECRET = "client_secret"
    """Client id and client secret of an OAuth app."""
    WORKFLOW_TOKEN = "workflow_token"
    MACHINE = "machine"
    """Not one of them: a node agent or a server of our own, whose proof was checked by whom it is sent to."""


class CallerClass(Enum):
    """The rows of a ceiling: a kind of credential, and whether an enterprise raises it."""

    NONE = "none"
    USER = "user"
    USER_ENTERPRISE = "user_enterprise"
    INSTALLATION = "installation"
    INSTALLATION_ENTERPRISE = "installation_enterprise"
    CLIENT = "client"
    CLIENT_ENTERPRISE = "client_enterprise"
    WORKFLOW = "workflow"
    WORKFLOW_ENTERPRISE = "workflow_enterprise"
    MACHINE = "machine"
    """Node agents and servers. They are counted and never limited: `lint` refuses a rule that would."""

    # Members are singletons. The hash of Enum is a Python function, and a ceiling is looked up for every new plan.
    __hash__ = object.__hash__


LIMITED_CLASSES: Final = tuple(case for case in CallerClass if case is not CallerClass.MACHINE)

# Whose ceiling is taken where a rule names none for the case itself.
ORDINARY_CLASSES: Final = {
    CallerClass.USER_ENTERPRISE: CallerClass.USER,
    CallerClass.INSTALLATION_ENTERPRISE: CallerClass.INSTALLATION,
    CallerClass.CLIENT_ENTERPRISE: CallerClass.CLIENT,
    CallerClass.WORKFLOW_ENTERPRISE: CallerClass.WORKFLOW,
}


class Caller(msgspec.Struct, frozen=True, kw_only=True, gc=False, cache_hash=True):
    """One who calls, from one address. Compared by what it holds, so that whoever makes callers need not keep them.

    `owner`, `user`, `app`, ... are scope values such as `user:ada`; None where the credential has no such thing.
    """

    kind: CredentialKind
    caller_class: CallerClass
    owner: str
    """Whose primary bucket is used: the user, installation, app, repository or address."""
    address: str
    """The scope value of the address: `address:192.0.2.7`, or of an IPv6 network of 64 bits."""
    network: str = ""
    """The wider network (/24 or /48) whose bucket is shared when too many addresses are counted."""
    display_name: str = ""
    """How a message names the owner: `user ID 5`, `installation ID 71`, or the address."""
    user: str | None = None
    app: str | None = None
    installation: str | None = None
    repository: str | None = None
    token: str | None = None
    scopes: tuple[str, ...] = ()
    """What the token may be used for, as its replies tell."""
    expires_ms: int | None = None
    """Until when the token is good; None for as long as nobody revokes it."""
    repositories: int = 0
    """How many repositories an installation reaches."""
    members: int = 0
    """How many users the organization of an installation has."""

    @property
    def is_anonymous(self) -> bool:
        return self.kind is CredentialKind.NONE

    @property
    def ban_subject(self) -> str:
        """Who is banned for going on while limited: the app, else the token, else the address; never a whole user."""
        return self.app or self.token or self.address

    def get_scope_value(self, member: str) -> str:
        """The value of one member of a scope; the owner stands in for what this credential does not have."""
        if member == "caller":
            return self.owner
        value: str | None = getattr(self, member)
        return value or self.owner
