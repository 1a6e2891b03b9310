"""Who a credential belongs to: out of what a request shows and the directory, a caller or a refusal.

It says which row of a ceiling holds for the caller; how much that is, the rules say.
"""

import hmac
from typing import Final

import msgspec

from wharf.limits.core.address import Address, counted_address, counted_network
from wharf.limits.core.caller import Caller, Case, CredentialKind
from wharf.limits.core.credential import ClientShown, Malformed, NothingShown, Shown, TokenShown
from wharf.limits.core.directory import App, Directory, Token

BAD_CREDENTIALS: Final = "Bad credentials"
REMEMBERED_CALLERS: Final = 65_536


class Unrecognised(msgspec.Struct, frozen=True):
    """401: no caller. The message is for the sender."""

    message: str = BAD_CREDENTIALS


class Recognition:
    """Remembers the callers that it made, so that the same credential from the same place is the same caller.

    A directory that changes needs another recognition: then tiers, memberships and revocations hold at once.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._callers: dict[tuple[Shown, Address, bool], tuple[Caller, int | None]] = {}

    def caller(self, shown: Shown, address: Address, path: str, now_ms: int) -> Caller | Unrecognised:
        """`path` matters for workflow tokens: what it leads to may belong to an enterprise."""
        key = (shown, address, self._leads_to_enterprise(path) if isinstance(shown, TokenShown) else False)
        known = self._callers.get(key)
        if known is None:
            made = make_caller(shown, address, path, self._directory, now_ms)
            if isinstance(made, Unrecognised):
                return made
            if len(self._callers) >= REMEMBERED_CALLERS:
                self._callers.clear()
            known = self._callers[key] = (made, _expiry(shown, self._directory))
        caller, expires_ms = known
        return caller if expires_ms is None or now_ms < expires_ms else Unrecognised()

    def expires(self, shown: Shown) -> bool:
        """Whether what is shown is good for a time only."""
        return _expiry(shown, self._directory) is not None

    def _leads_to_enterprise(self, path: str) -> bool:
        owner = owner_of_path(path)
        return owner is not None and is_enterprise_account(owner, self._directory)


def _expiry(shown: Shown, directory: Directory) -> int | None:
    tokens = [shown] if isinstance(shown, TokenShown) else []
    if isinstance(shown, ClientShown):
        tokens = [shown.token, shown.swapped]
    found = [directory.find_token(token.sha256) for token in tokens]
    return min((t.expires_ms for t in found if t is not None and t.expires_ms is not None), default=None)


def make_caller(shown: Shown, address: Address, path: str, directory: Directory, now_ms: int) -> Caller | Unrecognised:
    match shown:
        case NothingShown():
            return anonymous(address)
        case Malformed(message=message):
            return Unrecognised(message)
        case TokenShown():
            return _by_token(shown, address, path, directory, now_ms)
        case ClientShown():
            return _by_client(shown, address, path, directory, now_ms)


def anonymous(address: Address) -> Caller:
    counted = counted_address(address)
    return Caller(
        kind=CredentialKind.NONE,
        case=Case.NONE,
        owner=counted,
        address=counted,
        network=counted_network(address),
        spoken=str(address),
    )


def _by_client(
    shown: ClientShown, address: Address, path: str, directory: Directory, now_ms: int
) -> Caller | Unrecognised:
    app = directory.find_client(shown.client_id)
    if app is None:
        # A name with a token as its password, as git sends it; or the token in the name's place.
        caller = _by_token(shown.token, address, path, directory, now_ms)
        return (
            _by_token(shown.swapped, address, path, directory, now_ms) if isinstance(caller, Unrecognised) else caller
        )
    if not app.is_oauth or not hmac.compare_digest(app.client_secret_sha256 or "", shown.secret_sha256):
        return Unrecognised()
    return Caller(
        kind=CredentialKind.CLIENT_SECRET,
        case=Case.CLIENT_ENTERPRISE if is_enterprise_account(app.owner, directory) else Case.CLIENT,
        owner=f"app:{app.id}",
        address=counted_address(address),
        spoken=f"app ID {app.id}",
        app=f"app:{app.id}",
    )


def _by_token(
    shown: TokenShown, address: Address, path: str, directory: Directory, now_ms: int
) -> Caller | Unrecognised:
    token = directory.find_token(shown.sha256)
    if token is None or token.is_revoked or (token.expires_ms is not None and now_ms >= token.expires_ms):
        return Unrecognised()
    if shown.kinds and token.kind not in shown.kinds:
        return Unrecognised()
    if token.installation is not None:
        return _installation(token, address, directory)
    if token.repository is not None:
        return _workflow(token, address, path, directory)
    return _user(token, address, directory)


def _user(token: Token, address: Address, directory: Directory) -> Caller | Unrecognised:
    user = directory.find_user(token.user or "")
    if user is None:
        return Unrecognised()
    app = directory.find_app(token.app) if token.app is not None else None
    return Caller(
        kind=token.kind,
        case=Case.USER_ENTERPRISE if app is not None and raises_user(app, user.login, directory) else Case.USER,
        owner=f"user:{user.login}",
        address=counted_address(address),
        spoken=f"user ID {user.id}" if user.id is not None else f"user {user.login}",
        user=f"user:{user.login}",
        app=f"app:{app.id}" if app is not None else None,
        token=f"token:{token.sha256[:16]}",
        expires_ms=token.expires_ms,
        scopes=token.scopes,
    )


def raises_user(app: App, login: str, directory: Directory) -> bool:
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


def _installation(token: Token, address: Address, directory: Directory) -> Caller | Unrecognised:
    installation = directory.find_installation(token.installation or 0)
    if installation is None:
        return Unrecognised()
    is_raised = is_enterprise_account(installation.on, directory)
    is_on_organization = directory.find_organization(installation.on) is not None
    return Caller(
        kind=CredentialKind.INSTALLATION_TOKEN,
        case=Case.INSTALLATION_ENTERPRISE if is_raised else Case.INSTALLATION,
        owner=f"installation:{installation.id}",
        address=counted_address(address),
        spoken=f"installation ID {installation.id}",
        app=f"app:{installation.app}",
        installation=f"installation:{installation.id}",
        token=f"token:{token.sha256[:16]}",
        expires_ms=token.expires_ms,
        repositories=installation.repositories,
        members=installation.members if is_on_organization else 0,
    )


def _workflow(token: Token, address: Address, path: str, directory: Directory) -> Caller | Unrecognised:
    repository = directory.find_repository(token.repository or "")
    if repository is None:
        return Unrecognised()
    # What is asked for decides; a path that leads to no account is about the token's own repository.
    account = owner_of_path(path) or repository.owner
    return Caller(
        kind=CredentialKind.WORKFLOW_TOKEN,
        case=Case.WORKFLOW_ENTERPRISE if is_enterprise_account(account, directory) else Case.WORKFLOW,
        owner=f"repository:{repository.name}",
        address=counted_address(address),
        spoken=f"repository {repository.name}",
        repository=f"repository:{repository.name}",
        token=f"token:{token.sha256[:16]}",
        expires_ms=token.expires_ms,
    )


def is_enterprise_account(name: str, directory: Directory) -> bool:
    """Whether an account is an organization of the enterprise tier, or an enterprise."""
    organization = directory.find_organization(name)
    return organization.is_enterprise_tier if organization is not None else directory.is_enterprise(name)


def owner_of_path(path: str) -> str | None:
    """The account that a path leads to: of a repository, an organization or an enterprise; None if to none."""
    segments = path.partition("?")[0].strip("/").split("/")
    if len(segments) >= 2 and segments[0] in ("repos", "orgs", "enterprises"):
        return segments[1]
    if len(segments) >= 4 and segments[1].endswith(".git"):  # Large files: /acme/site.git/info/lfs/...
        return segments[0]
    return None
