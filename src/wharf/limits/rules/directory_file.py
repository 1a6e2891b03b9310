"""Reads a directory file: accounts, apps, installations, repositories, and tokens by hash.

A file with any problem is rejected completely.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from wharf.limits.core.callers.caller import CredentialKind
from wharf.limits.core.callers.directory import (
    App,
    DirectoryToken,
    Installation,
    MemoryDirectory,
    Organization,
    Repository,
    User,
)
from wharf.limits.rules.document import TableEntry, TomlDocument, format_key, suggest_name
from wharf.limits.rules.schema import APP, ENTERPRISE, INNER_LISTS, ORGANIZATION, REPOSITORY, USER, TableSchema

_REPOSITORY_NAME: Final = re.compile(r"[^\s/]+(?:/[^\s/]+)+")
ENTERPRISE_TIER: Final = "enterprise"


def read_directory(text: str, file: str = "directory.toml") -> MemoryDirectory:
    """Return the directory that a file describes. Raises `InvalidFile` with all problems of the file."""
    document = TomlDocument(text, file)
    document.check_names({"user", "organization", "enterprise", "app", "repository"})
    reader = _DirectoryReader(document)
    directory = reader.read()
    document.raise_problems()
    return directory


class _DirectoryReader:
    """Reads the tables of one directory file, and records its problems in the document."""

    def __init__(self, document: TomlDocument) -> None:
        self._document = document
        self._tokens: dict[str, DirectoryToken] = {}
        self._apps: dict[int, App] = {}
        self._app_references: list[tuple[TableEntry, int]] = []
        self._installations: dict[int, Installation] = {}
        self._organizations_by_id: dict[int, Organization] = {}
        self._repositories_by_id: dict[int, Repository] = {}

    def read(self) -> MemoryDirectory:
        """Return the directory that the tables describe. Problems are recorded in the document, not raised."""
        organizations = dict(self._read_organizations())
        enterprises = frozenset(entry.values.get("name", "").lower() for entry in self._read_entries(ENTERPRISE))
        for entry in self._read_entries(APP):
            self._read_app(entry)
        users = dict(self._read_users())
        repositories = dict(self._read_repositories())
        for entry, app in self._app_references:
            if app not in self._apps:
                self._add_problem(entry, "app", f"app {app} does not exist: add it as [[app]] with `id = {app}`")
        self._check_members(organizations, users, enterprises)
        return MemoryDirectory(
            users=users,
            organizations=organizations,
            enterprises=enterprises,
            apps=self._apps,
            installations=self._installations,
            repositories=repositories,
            organizations_by_id=self._organizations_by_id,
            repositories_by_id=self._repositories_by_id,
            tokens=self._tokens,
            clients={app.client_id: app for app in self._apps.values() if app.client_id is not None},
        )

    def _read_users(self) -> Iterator[tuple[str, User]]:
        """Yield each user as a pair of lowercase login and user, and add its tokens to `_tokens`."""
        for entry in self._read_entries(USER):
            login = entry.values.get("login", "")
            yield login.lower(), User(login=login, id=entry.values.get("id"))
            for token in self._read_inner_entries(entry, "user", "tokens"):
                app = token.values.get("app")
                if app is not None:
                    self._app_references.append((token, app))
                self._add_token(token, kind=self._get_user_token_kind(app), user=login, app=app)

    def _get_user_token_kind(self, app_id: int | None) -> CredentialKind:
        """Return the kind of a user's token, which depends on the app that it belongs to."""
        if app_id is None:
            return CredentialKind.PERSONAL_TOKEN
        app = self._apps.get(app_id)
        is_oauth = app is not None and app.is_oauth
        return CredentialKind.OAUTH_TOKEN if is_oauth else CredentialKind.APP_USER_TOKEN

    def _read_organizations(self) -> Iterator[tuple[str, Organization]]:
        """Yield each organization as a pair of lowercase login and organization, and store it by its ids."""
        for entry in self._read_entries(ORGANIZATION):
            values = entry.values
            login = values.get("login", "")
            organization = Organization(
                login=login,
                is_enterprise_tier=values.get("tier") == ENTERPRISE_TIER or "enterprise" in values,
                members=frozenset((*values.get("members", ()), *values.get("owners", ()))),
                owners=frozenset(values.get("owners", ())),
            )
            for organization_id in values.get("ids", ()):
                if organization_id in self._organizations_by_id:
                    self._add_problem(entry, "ids", f"{organization_id} is an id of two organizations")
                self._organizations_by_id[organization_id] = organization
            yield login.lower(), organization

    def _read_app(self, entry: TableEntry) -> None:
        """Add an app to `_apps`, and its installations and their tokens to the directory."""
        values = entry.values
        app_id = values.get("id", 0)
        if app_id in self._apps:
            self._add_problem(entry, "id", f"{app_id} is the id of two apps")
        installations = list(self._read_inner_entries(entry, "app", "installations"))
        self._apps[app_id] = App(
            id=app_id,
            owner=values.get("owner", ""),
            is_oauth=values.get("oauth", "client_secret_sha256" in values and not installations),
            client_id=values.get("client_id"),
            client_secret_sha256=values.get("client_secret_sha256"),
            approved_by=frozenset(values.get("approved_by", ())),
        )
        for installation in installations:
            self._read_installation(installation, app_id)

    def _read_installation(self, entry: TableEntry, app_id: int) -> None:
        """Add an installation of an app to `_installations`, and its tokens to `_tokens`."""
        values = entry.values
        installation_id = values.get("id", 0)
        if installation_id in self._installations:
            self._add_problem(entry, "id", f"{installation_id} is the id of two installations")
        self._installations[installation_id] = Installation(
            id=installation_id,
            app=app_id,
            account=values.get("on", ""),
            repositories=values.get("repositories", 0),
            members=values.get("members", 0),
        )
        for token in self._read_inner_entries(entry, "installation", "tokens"):
            self._add_token(token, kind=CredentialKind.INSTALLATION_TOKEN, installation=installation_id)

    def _read_repositories(self) -> Iterator[tuple[str, Repository]]:
        """Yield each repository as a pair of lowercase name and repository. Store it by its id, and its tokens in `_tokens`."""
        for entry in self._read_entries(REPOSITORY):
            name = entry.values.get("name", "")
            if _REPOSITORY_NAME.fullmatch(name) is None:
                self._add_problem(
                    entry, "name", f"{name!r} is not a repository: write owner and name, such as acme/site"
                )
            repository = Repository(name=name, id=entry.values.get("id"))
            if repository.id is not None:
                if repository.id in self._repositories_by_id:
                    self._add_problem(entry, "id", f"{repository.id} is the id of two repositories")
                self._repositories_by_id[repository.id] = repository
            yield name.lower(), repository
            for token in self._read_inner_entries(entry, "repository", "tokens"):
                self._add_token(token, kind=CredentialKind.WORKFLOW_TOKEN, repository=name)

    def _add_token(
        self,
        entry: TableEntry,
        *,
        kind: CredentialKind,
        user: str | None = None,
        app: int | None = None,
        installation: int | None = None,
        repository: str | None = None,
    ) -> None:
        """Add a token to `_tokens`. Exactly one of `user`, `installation` and `repository` is its owner."""
        values = entry.values
        sha256 = values.get("sha256", "")
        if sha256 in self._tokens:
            self._add_problem(entry, "sha256", "the token is listed twice: it can have only one owner")
        if app is None and "app" in values and user is None:
            self._add_problem(entry, "app", "is only allowed for tokens of a user")
        self._tokens[sha256] = DirectoryToken(
            sha256=sha256,
            kind=kind,
            user=user,
            app=app,
            installation=installation,
            repository=repository,
            is_revoked=values.get("revoked", False),
            expires_ms=values.get("expires"),
            scopes=values.get("scopes", ()),
        )

    def _check_members(
        self, organizations: Mapping[str, Organization], users: Mapping[str, User], enterprises: frozenset[str]
    ) -> None:
        """Record a problem for each member, enterprise, approving organization or app owner that does not exist.

        Otherwise a misspelled member would silently have the lower ceiling.
        """
        for entry in self._read_entries_silently(ORGANIZATION):
            for key, member in [
                (list_key, name) for list_key in ("members", "owners") for name in entry.values.get(list_key, ())
            ]:
                user = users.get(member.lower())
                if user is None or user.login != member:
                    self._add_problem(
                        entry,
                        key,
                        f"{member!r} is not a user{suggest_name(member, {user.login for user in users.values()} or {'none'})}",
                    )
            enterprise = entry.values.get("enterprise")
            if enterprise is not None and enterprise.lower() not in enterprises:
                self._add_problem(entry, "enterprise", f"{enterprise!r} is not an enterprise: add it as [[enterprise]]")
        accounts = {*organizations, *users, *enterprises}
        for entry in self._read_entries_silently(APP):
            for name in entry.values.get("approved_by", ()):
                if name.lower() not in organizations:
                    self._add_problem(
                        entry,
                        "approved_by",
                        f"{name!r} is not an organization{suggest_name(name, set(organizations) or {'none'})}",
                    )
            owner = entry.values.get("owner", "")
            if owner and owner.lower() not in accounts:
                self._add_problem(
                    entry, "owner", f"{owner!r} is not an account{suggest_name(owner, accounts or {'none'})}"
                )

    def _read_entries(self, table: TableSchema) -> Iterator[TableEntry]:
        """Yield the entries of a list of tables, such as `[[user]]`, and record their problems."""
        inner = set(INNER_LISTS.get(table.name, {}))
        return self._document.read_entries(table, self._document.raw, (), table.name, inner)

    def _read_entries_silently(self, table: TableSchema) -> Iterator[TableEntry]:
        """Return the entries of a list of tables without recording their problems, which an earlier read has recorded."""
        problem_count = len(self._document.problems)
        entries = list(self._read_entries(table))
        del self._document.problems[problem_count:]
        return iter(entries)

    def _read_inner_entries(self, entry: TableEntry, outer_name: str, name: str) -> Iterator[TableEntry]:
        """Yield the entries of the list `name` inside of an entry, such as the `tokens` of a user. Record their problems.

        `outer_name` is the name of the table that the entry belongs to.
        """
        table = INNER_LISTS[outer_name][name]
        inner = set(INNER_LISTS.get(table.name, {}))
        return self._document.read_entries(table, entry.raw, entry.path, name, inner)

    def _add_problem(self, entry: TableEntry, key: str, message: str) -> None:
        self._document.add_problem(entry.locations.get(key, entry.location), format_key(entry.path, key), message)
