"""Finds the callers and counters that operators name. A caller need not have sent a request yet."""

import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from wharf.limits.admin.errors import ActionError
from wharf.limits.config.credential_settings import CredentialMode
from wharf.limits.core.callers.addresses import ANONYMOUS_V6_BITS, build_address_scope
from wharf.limits.core.callers.caller import Caller, CallerClass, CredentialKind
from wharf.limits.core.callers.directory import Directory
from wharf.limits.core.callers.recognition import build_opaque_token, is_enterprise_account
from wharf.limits.core.counting.bans import USER_PREFIX
from wharf.limits.core.plans import Charge, build_charge
from wharf.limits.core.rule import MINUTE_MS
from wharf.limits.decisions import DecisionService

UNKNOWN_ADDRESS: Final = "address:0.0.0.0"
"""The address of callers that have sent no request."""
OWNER_KINDS: Final = ("user", "address", "installation", "app", "repository", "token", "credential", "organization")
MAX_ECHOED_CHARS: Final = 200
"""Limit of an operator's input in an error text."""
_TOKEN_NAME: Final = re.compile("[0-9a-f]{16}")
"""The beginning of the hash of a token, as `Caller.token` has it."""
_SHORT_CREDENTIAL_KEY: Final = re.compile("[0-9a-f]{8,31}")
"""The beginning of a keyed hash. Refusals show 8 digits of it."""
_SHOWN_CREDENTIAL: Final = re.compile("credential[ :]([0-9a-f]{8,31})")
"""A credential as refusals name it, or the beginning of its complete name."""
SEARCHED_MS: Final = 60 * MINUTE_MS
"""How far back the activity of other processes is searched for a credential; limits the time that this takes."""
_CREDENTIAL_KEY: Final = re.compile("[0-9a-f]{32}")
"""The keyed hash of a credential that is not in the directory."""
MAX_LISTED_OWNERS: Final = 10
"""Limits the length of an error text."""
MAX_ENDPOINTS: Final = 256
"""Limits the length of replies about one caller."""


def find_caller(service: DecisionService, name: str) -> Caller:
    """Return the caller that an operator names, such as `user:ada` or `ada`. Raises `ActionError`.

    A caller that sent requests is returned as it was last recognized; any other is derived from the directory. The name can
    also be one that a refusal shows, such as `credential 0a1b2c3d` or `user ID 5`, if the caller sent requests.
    """
    caller_of_descriptors = service.evaluator.limiter.descriptor_book.find_caller(name)
    if caller_of_descriptors is not None:
        return caller_of_descriptors
    owner = name if name.partition(":")[0] in OWNER_KINDS and ":" in name else f"user:{name}"
    if owner.startswith("address:"):
        owner = parse_address_scope(owner)
    last_caller = service.activity.last_callers.get(owner)
    if last_caller is None:
        service.activity.add_admissions_to_rows(service.now_ms())
        last_caller = service.activity.last_callers.get(owner)
    directory = service.caller_resolver.directory
    caller = last_caller or _build_caller(owner, directory) or _find_shown_caller(name, service.activity.last_callers)
    if caller is None:
        others = ""
        if service.shared_records.record_store is not None:
            others = ", nor in the last hour any process that shares its counters and can be asked now"
        raise ActionError(
            f"caller {name[:MAX_ECHOED_CHARS]!r} not found: this process has received no request of it since it started"
            f"{others}, and it is not in the directory. Name a caller such as user:ada, address:192.0.2.7, installation:71, app:7 or "
            "repository:acme/site, or as `wharf limits top` prints it.",
            404,
        )
    return caller


async def expand_name(service: DecisionService, name: str) -> str:
    """Return the complete name of a credential that a refusal shows by its beginning, such as `credential 0a1b2c3d`.

    If this process has not seen it, the activity of all processes that share the store is searched. Any other name is
    returned as it is. Raises `ActionError` if several credentials begin so.
    """
    match = _SHOWN_CREDENTIAL.fullmatch(name)
    if match is None or service.shared_records.record_store is None:
        return name
    prefix = f"credential:{match[1]}"
    if any(owner.startswith(prefix) for owner in service.activity.last_callers):
        return name
    now_ms = service.now_ms()
    rows_by_process = await service.shared_records.read_activity(now_ms=now_ms, since_ms=now_ms - SEARCHED_MS)
    owners = sorted(
        {row.caller.owner for rows in rows_by_process.values() for row in rows if row.caller.owner.startswith(prefix)}
    )
    if len(owners) > 1:
        raise _build_ambiguity_error(name, owners)
    return owners[0] if owners else name


def _build_ambiguity_error(name: str, owners: Sequence[str]) -> ActionError:
    """Return the error for a name that stands for several callers."""
    listed = ", ".join(owners[:MAX_LISTED_OWNERS])
    return ActionError(f"{name[:MAX_ECHOED_CHARS]!r} stands for {len(owners)} callers: use one of {listed}", 409)


def _find_shown_caller(name: str, last_callers: Mapping[str, Caller]) -> Caller | None:
    """Return the caller that refusals show by this name, or whose credential begins with it; `None` if no caller matches.

    Raises `ActionError` if several match.
    """
    kind, _, key = name.partition(":")
    prefix = name if kind == "credential" and _SHORT_CREDENTIAL_KEY.fullmatch(key) else None
    found = [
        caller
        for owner, caller in last_callers.items()
        if caller.display_name == name or (prefix is not None and owner.startswith(prefix))
    ]
    if len(found) > 1:
        raise _build_ambiguity_error(name, sorted(caller.owner for caller in found))
    return found[0] if found else None


def parse_address_scope(subject: str) -> str:
    """Return `address:…` as counters and bans name it: an IPv6 address stands for its /64 network.

    Raises `ActionError` if it is not an IP address, or a network other than such a /64.
    """
    text = subject.removeprefix("address:")
    try:
        if "/" not in text:
            address = ip_address(text)
            mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
            return build_address_scope(mapped or address)
        network = ip_network(text)
        if isinstance(network, IPv6Network) and network.prefixlen == ANONYMOUS_V6_BITS:
            return f"address:{network}"
    except ValueError:
        pass
    raise ActionError(
        f"{text[:MAX_ECHOED_CHARS]!r} is not an address: expected one such as address:192.0.2.7 or address:2001:db8::7, "
        "which stands for its /64 network"
    )


def is_credential_key(text: str) -> bool:
    """Return whether a text is the keyed hash of a credential, as `wharf limits top` prints it."""
    return _CREDENTIAL_KEY.fullmatch(text) is not None


def find_ban_subject(service: DecisionService, name: str) -> str:
    """Return what a ban of a name applies to: for a credential, as `top` or a refusal shows it, its token.

    Raises `ActionError` if it cannot be banned.
    """
    if name.startswith(("credential:", "credential ")):
        return find_caller(service, name).ban_subject
    if name.startswith(USER_PREFIX):
        return _find_banned_user(service, name)
    return parse_ban_subject(name)


def _find_banned_user(service: DecisionService, name: str) -> str:
    """Return a user as the subject of a ban. Raises `ActionError` if no credential can be that of this user.

    With resolved credentials, the user need not have sent a request yet.
    """
    mode = service.settings.credentials.mode
    if mode is CredentialMode.RESOLVED:
        return name
    if service.caller_resolver.directory.find_user(name.removeprefix(USER_PREFIX)) is not None:
        return name
    if mode is CredentialMode.OPAQUE:
        raise ActionError(
            f"{name[:MAX_ECHOED_CHARS]} cannot be banned: the limiter does not know the users of credentials, because of "
            '`credentials = "opaque"`. Ban their credentials, such as credential:… as `wharf limits top` prints it.'
        )
    raise ActionError(f"{name[:MAX_ECHOED_CHARS]} cannot be banned: the directory has no such user", 404)


def parse_ban_subject(subject: str) -> str:
    """Return the subject of a ban as `wharf limits show` prints it. Raises `ActionError` if it cannot be banned."""
    kind, _, name = subject.partition(":")
    match kind:
        case "address":
            return parse_address_scope(subject)
        case "app" if _is_number(name):
            return subject
        case "token" if _TOKEN_NAME.fullmatch(name):
            return subject
        case "app" | "token":
            example = "app:7" if kind == "app" else "token:0123456789abcdef"
            raise ActionError(
                f"{subject[:MAX_ECHOED_CHARS]!r} is not a subject of a ban: expected one such as {example}, as "
                "`wharf limits show` prints it"
            )
    raise ActionError(
        f"{subject[:MAX_ECHOED_CHARS]} cannot be banned: only user:…, app:…, token:…, credential:… and address:… can. "
        "`wharf limits show` shows the ban subject of a caller."
    )


def _build_caller(owner: str, directory: Directory) -> Caller | None:
    """Return the caller with this owner, such as `user:ada`, as the directory describes it; `None` if it is unknown."""
    owner_type, _, name = owner.partition(":")
    match owner_type:
        case "address":
            return Caller(
                kind=CredentialKind.NONE, caller_class=CallerClass.NONE, owner=owner, address=owner, display_name=name
            )
        case "credential" if is_credential_key(name):
            return Caller(
                kind=CredentialKind.OPAQUE,
                caller_class=CallerClass.USER,
                owner=owner,
                address=UNKNOWN_ADDRESS,
                token=build_opaque_token(name),
            )
        case "user" if directory.find_user(name) is not None:
            return Caller(
                kind=CredentialKind.PERSONAL_TOKEN,
                caller_class=CallerClass.USER,
                owner=owner,
                address=UNKNOWN_ADDRESS,
                user=owner,
            )
        case "installation" if _is_number(name):
            return _build_installation(owner, int(name), directory)
        case "app" if _is_number(name) and (app := directory.find_app(int(name))) is not None:
            return Caller(
                kind=CredentialKind.CLIENT_SECRET,
                caller_class=CallerClass.CLIENT_ENTERPRISE
                if is_enterprise_account(app.owner, directory)
                else CallerClass.CLIENT,
                owner=owner,
                address=UNKNOWN_ADDRESS,
                app=owner,
            )
        case "repository" if (repository := directory.find_repository(name)) is not None:
            return Caller(
                kind=CredentialKind.WORKFLOW_TOKEN,
                caller_class=CallerClass.WORKFLOW_ENTERPRISE
                if is_enterprise_account(repository.owner, directory)
                else CallerClass.WORKFLOW,
                owner=owner,
                address=UNKNOWN_ADDRESS,
                repository=owner,
            )
    return None


def _build_installation(owner: str, installation_id: int, directory: Directory) -> Caller | None:
    """Return the caller for an app installation, as the directory describes it; `None` if it is unknown."""
    installation = directory.find_installation(installation_id)
    if installation is None:
        return None
    is_enterprise = is_enterprise_account(installation.account, directory)
    return Caller(
        kind=CredentialKind.INSTALLATION_TOKEN,
        caller_class=CallerClass.INSTALLATION_ENTERPRISE if is_enterprise else CallerClass.INSTALLATION,
        owner=owner,
        address=UNKNOWN_ADDRESS,
        installation=owner,
        app=f"app:{installation.app}",
        repositories=installation.repositories,
        members=installation.members,
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def list_endpoint_charges(service: DecisionService, caller: Caller) -> list[Charge]:
    """Return the charges of the limits that have a counter for each endpoint, for the caller's endpoints of the last hour.

    At most `MAX_ENDPOINTS` endpoints are included.
    """
    rules = [
        rule for rule in service.evaluator.rules.rules if rule.per_endpoint and rule.applies_to(caller.caller_class)
    ]
    if not rules:
        return []  # Without reading the activity, which can be long.
    now_ms = service.now_ms()
    service.activity.add_admissions_to_rows(now_ms)
    rows = service.activity.list_rows(since_ms=now_ms - 60 * MINUTE_MS)
    endpoints = list(dict.fromkeys(row.endpoint for row in rows if row.caller.owner == caller.owner))[:MAX_ENDPOINTS]
    return [build_charge(rule, caller, endpoint=endpoint, cost=1) for rule in rules for endpoint in endpoints]


def list_charges(service: DecisionService, caller: Caller) -> list[Charge]:
    """Return a charge for each counter of a caller, also hidden ones: of its requests, or of its descriptors."""
    limiter = service.evaluator.limiter
    if limiter.descriptor_book.find_caller(caller.owner) is not None:
        return limiter.descriptor_book.list_charges(caller.owner)
    return [
        *limiter.rulebook.list_primary_charges(caller),
        *limiter.rulebook.list_secondary_charges(caller, has_hidden=True),
        *list_endpoint_charges(service, caller),
    ]
