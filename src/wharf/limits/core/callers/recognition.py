"""Identifies the caller of a request from its credential and the directory, or rejects the credential.

This module decides the class of a caller. Rules decide the ceiling of each class.
"""

import hmac
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

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
from wharf.limits.core.resources import ResourceName, list_accounts

BAD_CREDENTIALS: Final = "Bad credentials"
MAX_NAME_CHARACTERS: Final = 200
"""Characters of the name of an owner in counter keys; limits memory. Names at code hosts have at most 100."""


class UnrecognizedCredential(msgspec.Struct, frozen=True):
    """A rejected credential: the request is answered with 401 and this `message`."""

    message: str = BAD_CREDENTIALS
    is_unknown: bool = False
    """Whether the directory does not have the credential. Others are revoked, expired, malformed or wrong."""


def recognize_caller(
    credential: PresentedCredential,
    address: Address,
    names: Sequence[ResourceName],
    directory: Directory,
    now_ms: int,
) -> Caller | UnrecognizedCredential:
    """Return the caller that a credential belongs to, or `UnrecognizedCredential` with the reason for a 401.

    `names` are the resources that the path names. They matter for workflow tokens, whose class depends on the account that owns
    the requested resource.
    """
    match credential:
        case NoCredential():
            return make_anonymous_caller(address)
        case MalformedCredential(message=message):
            return UnrecognizedCredential(message)
        case PresentedToken():
            return _make_token_caller(credential, address, names, directory, now_ms)
        case PresentedClient():
            return _make_client_caller(credential, address, names, directory, now_ms)


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


def make_opaque_caller(key: str, address: Address) -> Caller:
    """Return the caller for a credential that the service has accepted. `key` is the keyed hash of the credential."""
    return Caller(
        kind=CredentialKind.OPAQUE,
        caller_class=CallerClass.USER,
        owner=f"credential:{key}",
        address=build_address_scope(address),
        display_name=f"credential {key[:8]}",
        token=build_opaque_token(key),
    )


def build_opaque_token(key: str) -> str:
    """Return the scope value of a credential with this keyed hash, to which bans apply."""
    return f"token:{key[:16]}"


class CredentialOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a credential, as the service, a hook or an identity provider names it. At least one member is set."""

    user: str | None = None
    """The login of a user."""
    user_id: int | None = None
    app: str | None = None
    """The id of an app."""
    organization: str | None = None
    """The login of an organization."""
    scopes: tuple[str, ...] = ()
    expires_ms: int | None = None


def encode_scope_name(name: str) -> str:
    """Return a name as counter keys can contain it: without spaces and braces, which separate the parts of keys."""
    return quote(name[:MAX_NAME_CHARACTERS].lower(), safe="!#$&'()*+,-./:;=?@[]^_`|~")


def make_owner_caller(owner: CredentialOwner, key: str, address: Address, directory: Directory) -> Caller:
    """Return the caller for a credential of this owner: its user, else its app, else its organization.

    `key` is the keyed hash of the credential. The directory may list the user and the tier of the organization.
    """
    is_enterprise = owner.organization is not None and is_enterprise_account(owner.organization, directory)
    app_scope = f"app:{encode_scope_name(owner.app)}" if owner.app is not None else None
    user_scope: str | None = None
    if owner.user is not None:
        listed = directory.find_user(owner.user)
        login = listed.login if listed is not None else encode_scope_name(owner.user)
        scope = user_scope = f"user:{login}"
        display_name = f"user ID {owner.user_id}" if owner.user_id is not None else f"user {owner.user}"
        classes = (CallerClass.USER, CallerClass.USER_ENTERPRISE)
    elif app_scope is not None:
        scope, display_name = app_scope, f"app ID {owner.app}"
        classes = (CallerClass.CLIENT, CallerClass.CLIENT_ENTERPRISE)
    else:
        assert owner.organization is not None, "an owner has at least one member"
        scope, display_name = (
            f"organization:{encode_scope_name(owner.organization)}",
            f"organization {owner.organization}",
        )
        classes = (CallerClass.INSTALLATION, CallerClass.INSTALLATION_ENTERPRISE)
    return Caller(
        kind=CredentialKind.RESOLVED,
        caller_class=classes[is_enterprise],
        owner=scope,
        address=build_address_scope(address),
        display_name=display_name,
        user=user_scope,
        app=app_scope,
        token=f"token:{key[:16]}",
        scopes=owner.scopes,
        expires_ms=owner.expires_ms,
    )


def _make_client_caller(
    credential: PresentedClient, address: Address, names: Sequence[ResourceName], directory: Directory, now_ms: int
) -> Caller | UnrecognizedCredential:
    """Return the caller for basic authentication: an OAuth app, or the owner of a token.

    Return `UnrecognizedCredential` if the secret of the app is wrong, or if neither part is a valid token.
    """
    app = directory.find_client(credential.client_id)
    if app is None:
        # Git sends the token as the password; some clients send it as the user name.
        caller = _make_token_caller(credential.token, address, names, directory, now_ms)
        if isinstance(caller, Caller):
            return caller
        other = _make_token_caller(credential.token_in_name, address, names, directory, now_ms)
        return caller if isinstance(other, UnrecognizedCredential) and other.is_unknown else other
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
    credential: PresentedToken, address: Address, names: Sequence[ResourceName], directory: Directory, now_ms: int
) -> Caller | UnrecognizedCredential:
    """Return the caller that owns a token.

    Return `UnrecognizedCredential` if the token is unknown, revoked or expired, or if the token
    has the prefix of another kind of token.
    """
    token = directory.find_token(credential.sha256)
    if token is None:
        return UnrecognizedCredential(is_unknown=True)
    if token.is_revoked or (token.expires_ms is not None and now_ms >= token.expires_ms):
        return UnrecognizedCredential()
    if credential.kinds and token.kind not in credential.kinds:
        return UnrecognizedCredential()
    if token.installation is not None:
        return _make_installation_caller(token, token.installation, address, directory)
    if token.repository is not None:
        return _make_workflow_caller(token, token.repository, address, names, directory)
    return _make_user_caller(token, address, directory)


def _make_user_caller(token: DirectoryToken, address: Address, directory: Directory) -> Caller | UnrecognizedCredential:
    """Return the caller for a token of a user; `UnrecognizedCredential` if the user does not exist."""
    user = directory.find_user(token.user) if token.user is not None else None
    if user is None:
        return UnrecognizedCredential()
    app = directory.find_app(token.app) if token.app is not None else None
    user_scope = f"user:{user.login}"
    return Caller(
        kind=token.kind,
        caller_class=CallerClass.USER_ENTERPRISE
        if app is not None and has_enterprise_ceiling(app, user.login, directory)
        else CallerClass.USER,
        owner=user_scope,
        address=build_address_scope(address),
        display_name=f"user ID {user.id}" if user.id is not None else f"user {user.login}",
        user=user_scope,
        app=f"app:{app.id}" if app is not None else None,
        token=f"token:{token.sha256[:16]}",
        expires_ms=token.expires_ms,
        scopes=token.scopes,
    )


def has_enterprise_ceiling(app: App, login: str, directory: Directory) -> bool:
    """Return whether requests of a user through this app have the enterprise ceiling.

    An app that an enterprise-tier organization owns raises the ceiling of all its users. An OAuth app that such an
    organization owns or approved raises the ceiling of the members of that organization only.
    """
    if not app.is_oauth:
        return is_enterprise_account(app.owner, directory)
    return any(
        organization.is_enterprise_tier and login in organization.members
        for organization in map(directory.find_organization, app.approved_by | {app.owner})
        if organization is not None
    )


def _make_installation_caller(
    token: DirectoryToken, installation_id: int, address: Address, directory: Directory
) -> Caller | UnrecognizedCredential:
    """Return the caller for a token of an app installation; `UnrecognizedCredential` if it does not exist."""
    installation = directory.find_installation(installation_id)
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
    token: DirectoryToken,
    repository_name: str,
    address: Address,
    names: Sequence[ResourceName],
    directory: Directory,
) -> Caller | UnrecognizedCredential:
    """Return the caller for a token of a workflow, which is counted by its repository.

    Return `UnrecognizedCredential` if the repository does not exist.
    """
    repository = directory.find_repository(repository_name)
    if repository is None:
        return UnrecognizedCredential()
    # The owner of the requested resource decides. Other paths belong to the token's own repository. If services read the
    # path differently, the account of each reading must be raised, so that no spelling chooses the ceiling.
    accounts = list_accounts(names, repository.owner, directory)
    return Caller(
        kind=CredentialKind.WORKFLOW_TOKEN,
        caller_class=CallerClass.WORKFLOW_ENTERPRISE
        if all(is_enterprise_account(account, directory) for account in accounts)
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
