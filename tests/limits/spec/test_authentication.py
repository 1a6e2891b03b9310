"""The table of credentials, row by row: recognition from the header, and the owner that is charged."""

import base64

import pytest

from wharf.limits.core.callers.addresses import ProxySettings, parse_address
from wharf.limits.core.callers.caller import Caller, CallerClass, CredentialKind
from wharf.limits.core.callers.credentials import hash_secret, read_credential
from wharf.limits.core.callers.directory import MemoryDirectory
from wharf.limits.core.callers.recognition import UnrecognizedCredential, recognize_caller
from wharf.limits.core.resources import NO_RESOURCES, ResourceFinder
from wharf.limits.decisions.callers import CallerResolver
from wharf.limits.decisions.requests import IncomingRequest
from wharf.limits.rules import read_directory

NOW_MS = 1_800_000_000_000


def token(value: str, **more: str) -> str:
    fields = "".join(f", {key} = {text}" for key, text in more.items())
    return f'{{ sha256 = "{hash_secret(value)}"{fields} }}'


DIRECTORY: MemoryDirectory = read_directory(
    f"""
    [[user]]
    login = "ada"
    id = 5
    tokens = [
        {token("ghp_personal")}, {token("github_pat_fine")}, {token("gho_plain", app="8")},
        {token("ghu_plain", app="7")}, {token("ghu_owned", app="9")}, {token("gho_owned", app="10")},
        {token("gho_approved", app="11")},
        {token("ghp_revoked", revoked="true")}, {token("ghp_old", expires="2026-01-01T00:00:00Z")},
    ]
    [[user]]
    login = "eve"
    tokens = [{token("gho_outsider", app="10")}, {token("ghu_outsider", app="9")}]
    [[organization]]
    login = "acme"
    tier = "enterprise"
    members = ["ada"]
    [[organization]]
    login = "small"
    [[organization]]
    login = "daughter"
    enterprise = "holding"
    [[enterprise]]
    name = "holding"
    [[app]]
    id = 7
    owner = "small"
    installations = [
        {{ id = 71, on = "small", repositories = 40, members = 25, tokens = [{token("ghs_small")}] }},
        {{ id = 72, on = "acme", repositories = 40, tokens = [{token("ghs_acme")}] }},
        {{ id = 73, on = "holding", tokens = [{token("ghs_holding")}] }},
        {{ id = 74, on = "daughter", tokens = [{token("ghs_daughter")}] }},
        {{ id = 75, on = "eve", repositories = 40, members = 25, tokens = [{token("ghs_person")}] }},
    ]
    [[app]]
    id = 8
    owner = "small"
    client_id = "client-8"
    client_secret_sha256 = "{hash_secret("secret-8")}"
    [[app]]
    id = 9
    owner = "acme"
    [[app]]
    id = 10
    owner = "acme"
    oauth = true
    client_id = "client-10"
    client_secret_sha256 = "{hash_secret("secret-10")}"
    [[app]]
    id = 11
    owner = "small"
    oauth = true
    approved_by = ["acme"]
    [[repository]]
    name = "small/site"
    tokens = [{token("ghs_workflow")}]
    [[repository]]
    name = "acme/site"
    tokens = [{token("ghs_workflow_acme")}]
    """
)


def recognize(
    authorization: str | None, *, path: str = "/meta", address: str = "192.0.2.7", query: str = ""
) -> Caller | UnrecognizedCredential:
    parsed = parse_address(address)
    assert parsed is not None
    names = ResourceFinder().find_names("GET", path)
    return recognize_caller(read_credential(authorization, query), parsed, names, DIRECTORY, NOW_MS)


def recognize_valid(authorization: str | None, *, path: str = "/meta", address: str = "192.0.2.7") -> Caller:
    caller = recognize(authorization, path=path, address=address)
    assert isinstance(caller, Caller), caller
    return caller


def basic(name: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()


def test_none_is_counted_against_the_originating_ip_address_not_a_user_or_application() -> None:
    caller = recognize_valid(None)

    assert (caller.kind, caller.owner, caller.user, caller.app) == (
        CredentialKind.NONE,
        "address:192.0.2.7",
        None,
        None,
    )


@pytest.mark.parametrize("value", ["ghp_personal", "github_pat_fine"])
def test_a_personal_access_token_is_counted_against_the_users_personal_limit(value: str) -> None:
    caller = recognize_valid(f"token {value}")

    assert (caller.kind, caller.owner, caller.caller_class) == (
        CredentialKind.PERSONAL_TOKEN,
        "user:ada",
        CallerClass.USER,
    )


def test_an_authorized_app_is_counted_against_the_users_limit_combined_with_other_apps_and_tokens() -> None:
    caller = recognize_valid("Bearer gho_plain")

    assert (caller.kind, caller.owner) == (CredentialKind.OAUTH_TOKEN, recognize_valid("token ghp_personal").owner)


def test_an_app_installation_access_token_is_counted_against_the_installations_limit() -> None:
    caller = recognize_valid("Bearer ghs_small")

    assert (caller.kind, caller.owner, caller.repositories, caller.members) == (
        CredentialKind.INSTALLATION_TOKEN,
        "installation:71",
        40,
        25,
    )


def test_an_app_user_access_token_is_counted_against_the_authenticated_users_limit() -> None:
    caller = recognize_valid("Bearer ghu_plain")

    assert (caller.kind, caller.owner, caller.app) == (CredentialKind.APP_USER_TOKEN, "user:ada", "app:7")


def test_client_id_and_client_secret_are_counted_per_oauth_app() -> None:
    caller = recognize_valid(basic("client-8", "secret-8"))

    assert (caller.kind, caller.owner, caller.caller_class) == (
        CredentialKind.CLIENT_SECRET,
        "app:8",
        CallerClass.CLIENT,
    )


def test_a_built_in_workflow_token_is_counted_per_repository() -> None:
    caller = recognize_valid("Bearer ghs_workflow")

    assert (caller.kind, caller.owner, caller.caller_class) == (
        CredentialKind.WORKFLOW_TOKEN,
        "repository:small/site",
        CallerClass.WORKFLOW,
    )


# -- higher ceilings -----------------------------------------------------------------------------------------------


def test_an_app_owned_by_an_enterprise_tier_organization_raises_all_its_users() -> None:
    assert [recognize_valid(f"token {value}").caller_class for value in ("ghu_owned", "ghu_outsider")] == [
        CallerClass.USER_ENTERPRISE
    ] * 2


def test_an_oauth_app_owned_by_an_enterprise_tier_organization_raises_its_members_only() -> None:
    assert [recognize_valid(f"token {value}").caller_class for value in ("gho_owned", "gho_outsider")] == [
        CallerClass.USER_ENTERPRISE,
        CallerClass.USER,
    ]


def test_an_oauth_app_approved_by_an_enterprise_tier_organization_raises_its_members() -> None:
    assert recognize_valid("token gho_approved").caller_class is CallerClass.USER_ENTERPRISE


@pytest.mark.parametrize("value", ["ghs_acme", "ghs_holding", "ghs_daughter"])
def test_an_installation_on_an_enterprise_tier_organization_or_an_enterprise_is_raised(value: str) -> None:
    assert recognize_valid(f"token {value}").caller_class is CallerClass.INSTALLATION_ENTERPRISE


def test_users_count_for_an_installation_on_an_organization_only() -> None:
    caller = recognize_valid("token ghs_person")

    assert (caller.repositories, caller.members) == (40, 0)


def test_a_client_secret_of_an_app_owned_by_an_enterprise_tier_organization_is_raised() -> None:
    assert recognize_valid(basic("client-10", "secret-10")).caller_class is CallerClass.CLIENT_ENTERPRISE


@pytest.mark.parametrize(
    ("path", "case"),
    [
        ("/repos/acme/site/issues", CallerClass.WORKFLOW_ENTERPRISE),
        ("/orgs/acme/repos?page=2", CallerClass.WORKFLOW_ENTERPRISE),
        ("/enterprises/holding/x", CallerClass.WORKFLOW_ENTERPRISE),
        ("/acme/site.git/info/lfs/objects/batch", CallerClass.WORKFLOW_ENTERPRISE),
        ("/acme/site/info/lfs/objects/batch", CallerClass.WORKFLOW_ENTERPRISE),
        ("/acme/site.git/git-upload-pack", CallerClass.WORKFLOW_ENTERPRISE),
        ("/repos/ACME/site/issues", CallerClass.WORKFLOW_ENTERPRISE),
        ("/enterprises/Holding/x", CallerClass.WORKFLOW_ENTERPRISE),
        ("/repos/%61cme/site/issues", CallerClass.WORKFLOW_ENTERPRISE),
        ("/repos/small/site/issues", CallerClass.WORKFLOW),
        ("/meta", CallerClass.WORKFLOW),
    ],
)
def test_a_workflow_token_is_raised_for_resources_of_an_enterprise_account(path: str, case: CallerClass) -> None:
    assert (
        recognize_valid("token ghs_workflow", path=path).caller_class,
        recognize_valid("token ghs_workflow", path=path).owner,
    ) == (
        case,
        "repository:small/site",
    )


@pytest.mark.parametrize(
    "path", ["/repos/small/site", "/Repos/small/site", "/repos;x/small/site", "/repos%2Fsmall/site"]
)
def test_a_workflow_of_an_enterprise_account_is_not_raised_for_others_in_any_spelling(path: str) -> None:
    assert recognize_valid("token ghs_workflow_acme", path=path).caller_class is CallerClass.WORKFLOW


def test_a_workflow_of_an_enterprise_account_is_raised_if_the_path_names_no_account() -> None:
    assert recognize_valid("token ghs_workflow_acme").caller_class is CallerClass.WORKFLOW_ENTERPRISE


# -- refused credentials -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "authorization",
    [
        "token ghp_unknown",
        "token ghp_revoked",
        "token ghp_old",
        "Bearer ",
        "Bearer two words",
        "Basic !!!",
        "Basic " + base64.b64encode(b"no colon").decode(),
        "Basic " + base64.b64encode(b"\xff:\xfe").decode(),
        "Basic " + "QUFB" * 2_000,
        basic("client-8", "wrong"),
        basic("client-9", "secret"),
        "token " + "x" * 100_000,
        "token caf\u00e9",
    ],
)
def test_an_unknown_revoked_or_malformed_credential_is_rejected(authorization: str) -> None:
    caller = recognize(authorization)

    assert isinstance(caller, UnrecognizedCredential)
    assert caller.message == "Bad credentials"


@pytest.mark.parametrize(
    ("authorization", "is_unknown"),
    [
        ("token ghp_unknown", True),
        (basic("ada", "unknown"), True),
        ("token ghp_revoked", False),
        (basic("ghp_revoked", ""), False),
        (basic("client-8", "wrong"), False),
        ("Digest x", False),
    ],
)
def test_only_credentials_that_the_directory_does_not_list_are_unknown(authorization: str, is_unknown: bool) -> None:
    caller = recognize(authorization)

    assert isinstance(caller, UnrecognizedCredential)
    assert caller.is_unknown is is_unknown


def test_another_scheme_is_rejected_with_an_example() -> None:
    assert recognize("Digest x") == UnrecognizedCredential(
        "The scheme of the Authorization header is not supported. Send 'Bearer' and a token, or use basic authentication."
    )


def test_a_token_with_the_prefix_of_another_kind_is_rejected() -> None:
    register = read_directory(f'[[user]]\nlogin = "ada"\ntokens = [{token("ghs_mine")}]')
    address = parse_address("192.0.2.7")
    assert address is not None

    assert (
        recognize_caller(read_credential("token ghs_mine"), address, NO_RESOURCES, register, NOW_MS)
        == UnrecognizedCredential()
    )


@pytest.mark.parametrize("query", ["access_token=x", "a=1&client_secret=y"])
def test_credentials_in_the_query_are_refused(query: str) -> None:
    assert recognize(None, query=query) == UnrecognizedCredential(
        "Credentials in the query string are not accepted. Send them in the Authorization header."
    )


@pytest.mark.parametrize(("name", "secret"), [("ada", "ghp_personal"), ("x", "ghp_personal"), ("ghp_personal", "")])
def test_a_token_may_be_sent_by_basic_authentication_as_git_does(name: str, secret: str) -> None:
    assert recognize_valid(basic(name, secret)).owner == "user:ada"


def test_the_same_credential_from_the_same_address_is_the_same_caller() -> None:
    resolver = CallerResolver(DIRECTORY, ProxySettings())
    first, second = (
        resolver.resolve_caller(IncomingRequest("GET", path, "", "192.0.2.7", "token ghp_personal"), NOW_MS)
        for path in ("/a", "/b")
    )

    assert isinstance(first, Caller)
    assert first is second


def test_a_token_expires_although_it_was_recognized_before() -> None:
    register = read_directory(f'[[user]]\nlogin = "ada"\ntokens = [{token("ghp_x", expires="2027-01-01T00:00:00Z")}]')
    resolver = CallerResolver(register, ProxySettings())
    incoming = IncomingRequest("GET", "/", "", "192.0.2.7", "token ghp_x")
    end_ms = 1_798_761_600_000

    callers = [resolver.resolve_caller(incoming, at_ms) for at_ms in (end_ms - 2, end_ms - 1, end_ms, end_ms + 1)]

    assert callers[0] is callers[1]
    assert [isinstance(caller, Caller) for caller in callers] == [True, True, False, False]


def test_the_class_of_a_workflow_token_is_found_again_for_each_path() -> None:
    resolver = CallerResolver(DIRECTORY, ProxySettings())
    classes = []
    for path in ("/meta", "/repos/acme/site/issues", "/meta"):
        incoming = IncomingRequest("GET", path, "", "192.0.2.7", "token ghs_workflow")
        caller = resolver.resolve_caller(incoming, NOW_MS)
        assert isinstance(caller, Caller)
        classes.append(caller.caller_class)

    assert classes == [CallerClass.WORKFLOW, CallerClass.WORKFLOW_ENTERPRISE, CallerClass.WORKFLOW]
