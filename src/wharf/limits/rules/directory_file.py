"""Reads a directory file: accounts, apps, installations, repositories, and tokens by their hash. All or nothing."""

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

_REPOSITORY: Final = re.compile(r"[^\s/]+/[^\s/]+")
ENTERPRISE_TIER: Final = "enterprise"


def read_directory(text: str, file: str = "directory.toml") -> MemoryDirectory:
    """Read a directory file. Raises FileRefused with everything that is wrong with it."""
    document = TomlDocument(text, file)
    document.check_names({"user", "organization", "enterprise", "app", "repository"})
    reader = _Reader(document)
    register = reader.read()
    document.raise_problems()
    return register


class _Reader:
    def __init__(self, document: TomlDocument) -> None:
        self._document = document
        self._tokens: dict[str, DirectoryToken] = {}
        self._apps: dict[int, App] = {}
        self._app_places: list[tuple[TableEntry, int]] = []
        self._installations: dict[int, Installation] = {}

    def read(self) -> MemoryDirectory:
        organizations = dict(self._organizations())
        enterprises = frozenset(entry.values.get("name", "") for entry in self._entries(ENTERPRISE))
        for entry in self._entries(APP):
            self._read_app(entry)
        users = dict(self._users())
        repositories = dict(self._repositories())
        for entry, app in self._app_places:
            if app not in self._apps:
                self._note(entry, "app", f"there is no app {app}: add it as [[app]] with `id = {app}`")
        self._check_members(organizations, users, enterprises)
        return MemoryDirectory(
            users=users,
            organizations=organizations,
            enterprises=enterprises,
            apps=self._apps,
            installations=self._installations,
            repositories=repositories,
            tokens=self._tokens,
            clients={app.client_id: app for app in self._apps.values() if app.client_id is not None},
        )

    def _users(self) -> Iterator[tuple[str, User]]:
        for entry in self._entries(USER):
            login = entry.values.get("login", "")
            yield login, User(login=login, id=entry.values.get("id"))
            for token in self._inner(entry, "user", "tokens"):
                app = token.values.get("app")
                if app is not None:
                    self._app_places.append((token, app))
                self._add_token(token, kind=self._kind_of_user_token(app), user=login, app=app)

    def _kind_of_user_token(self, app_id: int | None) -> CredentialKind:
        if app_id is None:
            return CredentialKind.PERSONAL_TOKEN
        app = self._apps.get(app_id)
        is_oauth = app is not None and app.is_oauth
        return CredentialKind.OAUTH_TOKEN if is_oauth else CredentialKind.APP_USER_TOKEN

    def _organizations(self) -> Iterator[tuple[str, Organization]]:
        for entry in self._entries(ORGANIZATION):
            values = entry.values
            login = values.get("login", "")
            yield (
                login,
                Organization(
                    login=login,
                    is_enterprise_tier=values.get("tier") == ENTERPRISE_TIER or "enterprise" in values,
                    members=frozenset((*values.get("members", ()), *values.get("owners", ()))),
                    owners=frozenset(values.get("owners", ())),
                ),
            )

    def _read_app(self, entry: TableEntry) -> None:
        values = entry.values
        app_id = values.get("id", 0)
        if app_id in self._apps:
            self._note(entry, "id", f"{app_id} is the number of two apps")
        installations = list(self._inner(entry, "app", "installations"))
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
        values = entry.values
        number = values.get("id", 0)
        if number in self._installations:
            self._note(entry, "id", f"{number} is the number of two installations")
        self._installations[number] = Installation(
            id=number,
            app=app_id,
            account=values.get("on", ""),
            repositories=values.get("repositories", 0),
            members=values.get("members", 0),
        )
        for token in self._inner(entry, "installation", "tokens"):
            self._add_token(token, kind=CredentialKind.INSTALLATION_TOKEN, installation=number)

    def _repositories(self) -> Iterator[tuple[str, Repository]]:
        for entry in self._entries(REPOSITORY):
            name = entry.values.get("name", "")
            if _REPOSITORY.fullmatch(name) is None:
                self._note(entry, "name", f"{name!r} is no repository: write its owner and its name, as acme/site")
            yield name, Repository(name=name)
            for token in self._inner(entry, "repository", "tokens"):
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
        values = entry.values
        sha256 = values.get("sha256", "")
        if sha256 in self._tokens:
            self._note(entry, "sha256", "the same token is here twice: it can be of one owner only")
        if app is None and "app" in values and user is None:
            self._note(entry, "app", "is only for tokens of a user")
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
        """Names must lead somewhere: a member who is misspelt would silently have the lower ceiling."""
        for entry in self._entries_again(ORGANIZATION):
            for key, member in [(of, name) for of in ("members", "owners") for name in entry.values.get(of, ())]:
                if member not in users:
                    self._note(entry, key, f"{member!r} is no user{suggest_name(member, set(users) or {'none'})}")
            enterprise = entry.values.get("enterprise")
            if enterprise is not None and enterprise not in enterprises:
                self._note(entry, "enterprise", f"{enterprise!r} is no enterprise: add it as [[enterprise]]")
        accounts = {*organizations, *users, *enterprises}
        for entry in self._entries_again(APP):
            for name in entry.values.get("approved_by", ()):
                if name not in organizations:
                    self._note(
                        entry,
                        "approved_by",
                        f"{name!r} is no organization{suggest_name(name, set(organizations) or {'none'})}",
                    )
            owner = entry.values.get("owner", "")
            if owner and owner not in accounts:
                self._note(entry, "owner", f"{owner!r} is no account{suggest_name(owner, accounts or {'none'})}")

    def _entries(self, table: TableSchema) -> Iterator[TableEntry]:
        inner = set(INNER_LISTS.get(table.name, {}))
        return self._document.read_entries(table, self._document.raw, (), table.name, inner)

    def _entries_again(self, table: TableSchema) -> Iterator[TableEntry]:
        """The entries a second time, without noting their problems a second time."""
        noted = len(self._document.problems)
        entries = list(self._entries(table))
        del self._document.problems[noted:]
        return iter(entries)

    def _inner(self, entry: TableEntry, outer: str, name: str) -> Iterator[TableEntry]:
        table = INNER_LISTS[outer][name]
        inner = set(INNER_LISTS.get(table.name, {}))
        return self._document.read_entries(table, entry.raw, entry.path, name, inner)

    def _note(self, entry: TableEntry, key: str, what: str) -> None:
        self._document.add_problem(entry.locations.get(key, entry.location), format_key(entry.path, key), what)
