"""Identifies the caller of a request from its credential and the directory, or rejects the credential.

This module decides the class of a caller. Rules decide the ceiling of each class.
"""

import hmac
from typing import Final

import msgspec

from wharf.limits.core.callers.addresses import Address, build_address_scope, build_network_scope
from wharf.limits.core.callers.caller import Caller, CallerClass, CredentialKind
from wharf.limits.core.callers.credentials import (
    MalformedCredential,
    NoCredential,
    PresentedClient,
    PresentedCredential,
    PresentedToken,
)
from wharf.limits.core.callers.directory import App, Directory, DirectoryToken

BAD_CREDENTIALS: Final = "Bad credentials"
MAX_CACHED_CALLERS: Final = 65_536
"""Limits the memory of the cache; it is cleared when it is full."""


class UnrecognizedCredential(msgspec.Struct, frozen=True):
    """The request is answered with 401. `message` is sent to the caller."""

    message: str = BAD_CREDENTIALS


class CallerRecognizer:
    """Identifies callers and caches them, so that equal credentials from one address give the same object.

    Build a new recognizer when the directory changes; then tiers, memberships and revocations apply immediately.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._callers: dict[tuple[PresentedCredential, Address, bool], tuple[Caller, int | None]] = {}

    def recognize(
        self, credential: PresentedCredential, address: Address, path: str, now_ms: int
    ) -> Caller | UnrecognizedCredential:
        """Return the caller, or the reason for a 401.

        `path` matters for workflow tokens: their class depends on the account that owns the requested repository.
        """
        key = (
            credential,
            address,
            self._is_enterprise_path(path) if isinstance(credential, PresentedToken) else False,
        )
        cached = self._callers.get(key)
        if cached is None:
            new_caller = make_caller(credential, address, path, self._directory, now_ms)
            if isinstance(new_caller, UnrecognizedCredential):
                return new_caller
            if len(self._callers) >= MAX_CACHED_CALLERS:
                self._callers.clear()
            cached = self._callers[key] = (new_caller, _find_expiry_ms(credential, self._directory))
        caller, expires_ms = cached
        return caller if expires_ms is None or now_ms < expires_ms else UnrecognizedCredential()

    def can_expire(self, credential: PresentedCredential) -> bool:
        """Return whether this credential has an expiry time."""
        return _find_expiry_ms(credential, self._directory) is not None

    def _is_enterprise_path(self, path: str) -> bool:
        """Return whether the path names a resource of an enterprise-tier account."""
        owner = get_path_owner(path)
        return owner is not None and is_enterprise_account(owner, self._directory)


def _find_expiry_ms(credential: PresentedCredential, directory: Directory) -> int | None:
    """Return when the first of the presented tokens expires; `None` if none of them expires."""
    tokens = [credential] if isinstance(credential, PresentedToken) else []
    if isinstance(credential, PresentedClient):
        tokens = [credential.token, credential.token_in_name]
    found = [directory.find_token(token.sha256) for token in tokens]
    return min((t.expires_ms for t in found if t is not None and t.expires_ms is not None), default=None)


def make_caller(
    credential: PresentedCredential, address: Address, path: str, directory: Directory, now_ms: int
) -> Caller | UnrecognizedCredential:
    """Return the caller that a credential belongs to, or the reason for a 401. Nothing is cached."""
    match credential:
        case NoCredential():
            return make_anonymous_caller(address)
        case MalformedCredential(message=message):
            return UnrecognizedCredential(message)
        case PresentedToken():
            return _make_token_caller(credential, address, path, directory, now_ms)
        case PresentedClient():
            return _make_client_caller(credential, address, path, directory, now_ms)


def make_anonymous_caller(address: Address) -> Caller:
    """Return the caller for a request without a credential: it is counted by its address."""
    address_scope = build_address_scope(address)
    return Caller(
        kind=CredentialKind.NONE,
        caller_class=CallerClass.NONE,
        owner=address_scope,
        address=address_scope,
        network=build_network_scope(address),
        display_name=str(address),
    )


def _make_client_caller(
    credential: PresentedClient, address: Address, path: str, directory: Directory, now_ms: int
) -> Caller | UnrecognizedCredential:
    """Return the caller for basic authentication: an OAuth app, or the owner of a token."""
    app = directory.find_client(credential.client_id)
    if app is None:
        # Git sends the token as the password; some clients send it as the user name.
        caller = _make_token_caller(credential.token, address, path, directory, now_ms)
        return (
            _make_token_caller(credential.token_in_name, address, path, directory, now_ms)
            if isinstance(caller, UnrecognizedCredential)
            else caller
        )
    if not app.is_oauth or not hmac.compare_digest(app.client_secret_sha256 or "", credential.secret_sha256):
        return UnrecognizedCredential()
    return Caller(
        kind=CredentialKind.CLIENT_SECRET,
        caller_class=CallerClass.CLIENT_ENTERPRISE
        if is_enterprise_account(app.owner, directory)
        else CallerClass.CLIENT,
        owner=f"app:{app.id}",
        address=build_address_scope(address),
        display_name=f"app ID {app.id}",
        app=f"app:{app.id}",
    )


def _make_token_caller(
    credential: PresentedToken, address: Address, path: str, directory: Directory, now_ms: int
) -> Caller | UnrecognizedCredential:
    """Return the caller that owns a token, unless the token is unknown, revoked, expired or of another kind."""
    token = directory.find_token(credential.sha256)
    if token is None or token.is_revoked or (token.expires_ms is not None and now_ms >= token.expires_ms):
        return UnrecognizedCredential()
    if credential.kinds and token.kind not in credential.kinds:
        return UnrecognizedCredential()
    if token.installation is not None:
        return _make_installation_caller(token, address, directory)
    if token.repository is not None:
        return _make_workflow_caller(token, address, path, directory)
    return _make_user_caller(token, address, directory)


def _make_user_caller(token: DirectoryToken, address: Address, directory: Directory) -> Caller | UnrecognizedCredential:
    """Return the caller for a token of a user."""
    user = directory.find_user(token.user or "")
    if user is None:
        return UnrecognizedCredential()
    app = directory.find_app(token.app) if token.app is not None else None
    return Caller(
        kind=token.kind,
        caller_class=CallerClass.USER_ENTERPRISE
        if app is not None and has_enterprise_ceiling(app, user.login, directory)
        else CallerClass.USER,
        owner=f"user:{user.login}",
        address=build_address_scope(address),
        display_name=f"user ID {user.id}" if user.id is not None else f"user {user.login}",
        user=f"user:{user.login}",
        app=f"app:{app.id}" if app is not None else None,
        token=f"token:{token.sha256[:16]}",
        expires_ms=token.expires_ms,
        scopes=token.scopes,
    )


def has_enterprise_ceiling(app: App, login: str, directory: Directory) -> bool:
    """Return whether requests of a user through this app have the enterprise ceiling.

    An app that an enterprise-tier organization owns raises the ceiling of all its users. An OAuth app that such an
    organization owns, and any app that one approved, raises the ceiling of the members of that organization.
    """
    if not app.is_oauth and is_enterprise_account(app.owner, directory):
        return True
    backing_organizations = app.approved_by | {app.owner} if app.is_oauth else app.approved_by
    return any(
        organization.is_enterprise_tier and login in organization.members
        for organization in map(directory.find_organization, backing_organizations)
        if organization is not None
    )


def _make_installation_caller(
    token: DirectoryToken, address: Address, directory: Directory
) -> Caller | UnrecognizedCredential:
    """Return the caller for a token of an app installation."""
    installation = directory.find_installation(token.installation or 0)
    if installation is None:
        return UnrecognizedCredential()
    is_enterprise = is_enterprise_account(installation.account, directory)
    is_on_organization = directory.find_organization(installation.account) is not None
    return Caller(
        kind=CredentialKind.INSTALLATION_TOKEN,
        caller_class=CallerClass.INSTALLATION_ENTERPRISE if is_enterprise else CallerClass.INSTALLATION,
        owner=f"installation:{installation.id}",
        address=build_address_scope(address),
        display_name=f"installation ID {installation.id}",
        app=f"app:{installation.app}",
        installation=f"installation:{installation.id}",
        token=f"token:{token.sha256[:16]}",
        expires_ms=token.expires_ms,
        repositories=installation.repositories,
        members=installation.members if is_on_organization else 0,
    )


def _make_workflow_caller(
    token: DirectoryToken, address: Address, path: str, directory: Directory
) -> Caller | UnrecognizedCredential:
    """Return the caller for a token of a workflow, which is counted by its repository."""
    repository = directory.find_repository(token.repository or "")
    if repository is None:
        return UnrecognizedCredential()
    # The owner of the requested resource decides. Other paths belong to the token's own repository.
    account = get_path_owner(path) or repository.owner
    return Caller(
        kind=CredentialKind.WORKFLOW_TOKEN,
        caller_class=CallerClass.WORKFLOW_ENTERPRISE
        if is_enterprise_account(account, directory)
        else CallerClass.WORKFLOW,
        owner=f"repository:{repository.name}",
        address=build_address_scope(address),
        display_name=f"repository {repository.name}",
        repository=f"repository:{repository.name}",
        token=f"token:{token.sha256[:16]}",
        expires_ms=token.expires_ms,
    )


def is_enterprise_account(name: str, directory: Directory) -> bool:
    """Return whether an account is an enterprise or an organization of the enterprise tier."""
    organization = directory.find_organization(name)
    return organization.is_enterprise_tier if organization is not None else directory.is_enterprise(name)


def get_path_owner(path: str) -> str | None:
    """Return the account that owns the requested resource, or `None` if the path names no account."""
    segments = path.partition("?")[0].strip("/").split("/")
    if len(segments) >= 2 and segments[0] in ("repos", "orgs", "enterprises"):
        return segments[1]
    if len(segments) >= 4 and segments[1].endswith(".git"):  # Large files: /acme/site.git/info/lfs/...
        return segments[0]
    return None
