"""Who a credential belongs to: out of what a request shows and the directory, a caller or a refusal.

It says which row of a ceiling holds for the caller; how much that is, the rules say.
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


class UnrecognizedCredential(msgspec.Struct, frozen=True):
    """401: no caller. The message is for the sender."""

    message: str = BAD_CREDENTIALS


class CallerRecognizer:
    """Remembers the callers that it made, so that the same credential from the same place is the same caller.

    A directory that changes needs another recognition: then tiers, memberships and revocations hold at once.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._callers: dict[tuple[PresentedCredential, Address, bool], tuple[Caller, int | None]] = {}

    def recognize(
        self, credential: PresentedCredential, address: Address, path: str, now_ms: int
    ) -> Caller | UnrecognizedCredential:
        """`path` matters for workflow tokens: what it leads to may belong to an enterprise."""
        key = (
            credential,
            address,
            self._leads_to_enterprise(path) if isinstance(credential, PresentedToken) else False,
        )
        known = self._callers.get(key)
        if known is None:
            made = make_caller(credential, address, path, self._directory, now_ms)
            if isinstance(made, UnrecognizedCredential):
                return made
            if len(self._callers) >= MAX_CACHED_CALLERS:
                self._callers.clear()
            known = self._callers[key] = (made, _expiry(credential, self._directory))
        caller, expires_ms = known
        return caller if expires_ms is None or now_ms < expires_ms else UnrecognizedCredential()

    def can_expire(self, credential: PresentedCredential) -> bool:
        """Whether what is shown is good for a time only."""
        return _expiry(credential, self._directory) is not None

    def _leads_to_enterprise(self, path: str) -> bool:
        owner = get_path_owner(path)
        return owner is not None and is_enterprise_account(owner, self._directory)


def _expiry(shown: PresentedCredential, directory: Directory) -> int | None:
    tokens = [shown] if isinstance(shown, PresentedToken) else []
    if isinstance(shown, PresentedClient):
        tokens = [shown.token, shown.token_in_name]
    found = [directory.find_token(token.sha256) for token in tokens]
    return min((t.expires_ms for t in found if t is not None and t.expires_ms is not None), default=None)


def make_caller(
    credential: PresentedCredential, address: Address, path: str, directory: Directory, now_ms: int
) -> Caller | UnrecognizedCredential:
    match credential:
        case NoCredential():
            return make_anonymous_caller(address)
        case MalformedCredential(message=message):
            return UnrecognizedCredential(message)
        case PresentedToken():
            return _by_token(credential, address, path, directory, now_ms)
        case PresentedClient():
            return _by_client(credential, address, path, directory, now_ms)


def make_anonymous_caller(address: Address) -> Caller:
    counted = build_address_scope(address)
    return Caller(
        kind=CredentialKind.NONE,
        caller_class=CallerClass.NONE,
        owner=counted,
        address=counted,
        network=build_network_scope(address),
        display_name=str(address),
    )


def _by_client(
    shown: PresentedClient, address: Address, path: str, directory: Directory, now_ms: int
) -> Caller | UnrecognizedCredential:
    app = directory.find_client(shown.client_id)
    if app is None:
        # A name with a token as its password, as git sends it; or the token in the name's place.
        caller = _by_token(shown.token, address, path, directory, now_ms)
        return (
            _by_token(shown.token_in_name, address, path, directory, now_ms)
            if isinstance(caller, UnrecognizedCredential)
            else caller
        )
    if not app.is_oauth or not hmac.compare_digest(app.client_secret_sha256 or "", shown.secret_sha256):
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


def _by_token(
    shown: PresentedToken, address: Address, path: str, directory: Directory, now_ms: int
) -> Caller | UnrecognizedCredential:
    token = directory.find_token(shown.sha256)
    if token is None or token.is_revoked or (token.expires_ms is not None and now_ms >= token.expires_ms):
        return UnrecognizedCredential()
    if shown.kinds and token.kind not in shown.kinds:
        return UnrecognizedCredential()
    if token.installation is not None:
        return _installation(token, address, directory)
    if token.repository is not None:
        return _workflow(token, address, path, directory)
    return _user(token, address, directory)


def _user(token: DirectoryToken, address: Address, directory: Directory) -> Caller | UnrecognizedCredential:
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
    """Whether a user's requests through this app have an enterprise's ceiling.

    An app that an enterprise-tier organization owns raises all its users; an OAuth app that one owns, and any app that
    one approved, raises the members of that organization.
    """
    if not app.is_oauth and is_enterprise_account(app.owner, directory):
        return True
    backers = app.approved_by | {app.owner} if app.is_oauth else app.approved_by
    return any(
        organization.is_enterprise_tier and login in organization.members
        for organization in map(directory.find_organization, backers)
        if organization is not None
    )


def _installation(token: DirectoryToken, address: Address, directory: Directory) -> Caller | UnrecognizedCredential:
    installation = directory.find_installation(token.installation or 0)
    if installation is None:
        return UnrecognizedCredential()
    is_raised = is_enterprise_account(installation.account, directory)
    is_on_organization = directory.find_organization(installation.account) is not None
    return Caller(
        kind=CredentialKind.INSTALLATION_TOKEN,
        caller_class=CallerClass.INSTALLATION_ENTERPRISE if is_raised else CallerClass.INSTALLATION,
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


def _workflow(
    token: DirectoryToken, address: Address, path: str, directory: Directory
) -> Caller | UnrecognizedCredential:
    repository = directory.find_repository(token.repository or "")
    if repository is None:
        return UnrecognizedCredential()
    # What is asked for decides; a path that leads to no account is about the token's own repository.
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
    """Whether an account is an organization of the enterprise tier, or an enterprise."""
    organization = directory.find_organization(name)
    return organization.is_enterprise_tier if organization is not None else directory.is_enterprise(name)


def get_path_owner(path: str) -> str | None:
    """The account that a path leads to: of a repository, an organization or an enterprise; None if to none."""
    segments = path.partition("?")[0].strip("/").split("/")
    if len(segments) >= 2 and segments[0] in ("repos", "orgs", "enterprises"):
        return segments[1]
    if len(segments) >= 4 and segments[1].endswith(".git"):  # Large files: /acme/site.git/info/lfs/...
        return segments[0]
    return None
