"""The directory of accounts: users, organizations, enterprises, apps, installations, repositories, and token hashes.

`Directory` is a port: it can be backed by a file or by the tables of a service. It only looks up records;
`recognition` interprets them.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from wharf.limits.core.callers.caller import CredentialKind


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user account."""

    login: str
    id: int | None = None


class Organization(msgspec.Struct, frozen=True, kw_only=True):
    """An organization account."""

    login: str
    is_enterprise_tier: bool = False
    """Whether it has the enterprise tier itself or belongs to an enterprise."""
    members: frozenset[str] = frozenset()
    """Logins of its users."""
    owners: frozenset[str] = frozenset()
    """Logins of users who may see the organization's activity."""


class App(msgspec.Struct, frozen=True, kw_only=True):
    """An app that can act for users or installations."""

    id: int
    owner: str
    """The account that owns the app."""
    is_oauth: bool = False
    """Whether it is an OAuth app, which has no installations."""
    client_id: str | None = None
    client_secret_sha256: str | None = None
    approved_by: frozenset[str] = frozenset()
    """Organizations that approved the app."""


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """An app that is installed on an account."""

    id: int
    app: int
    """The id of the app."""
    account: str
    """The account that the app is installed on: a user, an organization or an enterprise."""
    repositories: int = 0
    """The number of repositories that it can access."""
    members: int = 0
    """The number of users of the account."""


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """A repository, whose workflows can have tokens."""

    name: str
    """The name with its owner: `acme/site`."""
    id: int | None = None
    """The id by which paths can name it."""

    @property
    def owner(self) -> str:
        return self.name.partition("/")[0]


class DirectoryToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token by its hash, with its owner: exactly one of user, installation and repository is set."""

    sha256: str
    kind: CredentialKind
    user: str | None = None
    app: int | None = None
    installation: int | None = None
    repository: str | None = None
    is_revoked: bool = False
    expires_ms: int | None = None
    scopes: tuple[str, ...] = ()


class Directory(Protocol):
    """The lookups in the directory of accounts that identify a caller. A `find_*` method returns `None` if it finds nothing.

    The names of accounts and repositories are found in upper and lower case: `ACME` and `acme` are the same account.
    """

    def find_token(self, sha256: str) -> DirectoryToken | None: ...
    def find_client(self, client_id: str) -> App | None: ...
    def find_user(self, login: str) -> User | None: ...
    def find_organization(self, login: str) -> Organization | None: ...
    def find_app(self, app_id: int) -> App | None: ...
    def find_installation(self, installation_id: int) -> Installation | None: ...
    def find_repository(self, name: str) -> Repository | None: ...
    def find_organization_by_id(self, organization_id: int) -> Organization | None:
        """Return the organization with this id, or to which the group with this id belongs."""
        ...

    def find_repository_by_id(self, repository_id: int) -> Repository | None: ...
    def is_enterprise(self, name: str) -> bool:
        """Return whether this is the name of an enterprise (not of an organization in one)."""
        ...


class MemoryDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A complete directory in memory.

    The names that select users, organizations, enterprises and repositories are in lower case.
    """

    users: Mapping[str, User] = {}
    organizations: Mapping[str, Organization] = {}
    enterprises: frozenset[str] = frozenset()
    apps: Mapping[int, App] = {}
    installations: Mapping[int, Installation] = {}
    repositories: Mapping[str, Repository] = {}
    organizations_by_id: Mapping[int, Organization] = {}
    """By the ids of the organizations and of their groups."""
    repositories_by_id: Mapping[int, Repository] = {}
    tokens: Mapping[str, DirectoryToken] = {}
    clients: Mapping[str, App] = {}

    def find_token(self, sha256: str) -> DirectoryToken | None:
        return self.tokens.get(sha256)

    def find_client(self, client_id: str) -> App | None:
        return self.clients.get(client_id)

    def find_user(self, login: str) -> User | None:
        return self.users.get(login.lower())

    def find_organization(self, login: str) -> Organization | None:
        return self.organizations.get(login.lower())

    def find_app(self, app_id: int) -> App | None:
        return self.apps.get(app_id)

    def find_installation(self, installation_id: int) -> Installation | None:
        return self.installations.get(installation_id)

    def find_repository(self, name: str) -> Repository | None:
        return self.repositories.get(name.lower())

    def find_organization_by_id(self, organization_id: int) -> Organization | None:
        return self.organizations_by_id.get(organization_id)

    def find_repository_by_id(self, repository_id: int) -> Repository | None:
        return self.repositories_by_id.get(repository_id)

    def is_enterprise(self, name: str) -> bool:
        return name.lower() in self.enterprises
