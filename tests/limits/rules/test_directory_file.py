"""Directory files: their content and their problems. The tests of authentication cover their meaning."""

import pytest

from wharf.limits.rules import InvalidFile, read_directory

HASH = "a" * 64


def problems_of(text: str) -> list[str]:
    with pytest.raises(InvalidFile) as caught:
        read_directory(text, "who.toml")
    return [str(problem) for problem in caught.value.problems]


def test_the_example_of_the_design_is_read() -> None:
    register = read_directory(
        f"""
        [[user]]
        login = "ada"
        tokens = [{{ name = "laptop", sha256 = "{HASH}", scopes = ["repo"] }}]
        [[organization]]
        login = "acme"
        tier = "enterprise"
        members = ["ada"]
        [[app]]
        id = 7
        owner = "acme"
        client_id = "x"
        client_secret_sha256 = "{HASH}"
        installations = [{{ id = 71, on = "acme", repositories = 40, members = 25 }}]
        """
    )
    token = register.find_token(HASH)
    installation = register.find_installation(71)
    assert token is not None
    assert installation is not None

    assert (token.user, token.scopes, installation.app, installation.repositories) == ("ada", ("repo",), 7, 40)


def test_organizations_and_repositories_are_found_by_their_ids() -> None:
    directory = read_directory(
        '[[organization]]\nlogin = "Acme"\nids = [7, 12]\n[[organization]]\nlogin = "big"\nids = 9\n'
        '[[repository]]\nname = "acme/web/site"\nid = 42\n'
    )
    organizations = [directory.find_organization_by_id(number) for number in (7, 12, 9, 42)]
    repositories = [directory.find_repository_by_id(number) for number in (42, 7)]

    assert [found and found.login for found in organizations] == ["Acme", "Acme", "big", None]
    assert [found and found.name for found in repositories] == ["acme/web/site", None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[[usr]]\nlogin = "a"', ["who.toml:1:1: usr: is not known; did you mean 'user'?"]),
        ("[[user]]\nid = 3", ["who.toml:1:1: user[0].login: is missing. The login. The name of an account."]),
        ('[[user]]\nlogn = "a"', ["who.toml:2:1: user[0].logn: is not known; did you mean 'login'?"]),
        (
            '[[user]]\nlogin = "ada l"',
            ['who.toml:2:1: user[0].login: "ada l" is not an account name: it contains a space or a slash'],
        ),
        (
            '[[user]]\nlogin = "a"\ntokens = [\n  { sha256 = "ghp_secret" },\n]',
            [
                "who.toml:4:5: user[0].tokens[0].sha256: is not a SHA-256: write 64 hexadecimal digits in "
                "lowercase, never the secret itself"
            ],
        ),
        (
            f'[[user]]\nlogin = "a"\ntokens = [{{ sha256 = "{HASH}" }}, {{ sha256 = "{HASH}" }}]',
            ["who.toml:3:94: user[0].tokens[1].sha256: the token is listed twice: it can have only one owner"],
        ),
        (
            f'[[user]]\nlogin = "a"\ntokens = [{{ sha256 = "{HASH}", app = 9 }}]',
            ["who.toml:3:90: user[0].tokens[0].app: app 9 does not exist: add it as [[app]] with `id = 9`"],
        ),
        (
            f'[[user]]\nlogin = "a"\ntokens = [{{ sha256 = "{HASH}", expires = "2027" }}]',
            [
                'who.toml:3:90: user[0].tokens[0].expires: "2027" is not a time: write it without quotation marks and '
                "with an offset, such as 2027-01-31T12:00:00Z"
            ],
        ),
        (
            '[[user]]\nlogin = "ada"\n[[organization]]\nlogin = "acme"\nmembers = ["adda"]',
            ["who.toml:5:1: organization[0].members: 'adda' is not a user; did you mean 'ada'?"],
        ),
        (
            '[[organization]]\nlogin = "acme"\nenterprise = "x"',
            ["who.toml:3:1: organization[0].enterprise: 'x' is not an enterprise: add it as [[enterprise]]"],
        ),
        (
            '[[organization]]\nlogin = "acme"\n[[app]]\nid = 1\nowner = "acne"',
            ["who.toml:5:1: app[0].owner: 'acne' is not an account; did you mean 'acme'?"],
        ),
        (
            '[[organization]]\nlogin = "acme"\n[[app]]\nid = 1\nowner = "acme"\n[[app]]\nid = 1\nowner = "acme"',
            ["who.toml:7:1: app[1].id: 1 is the id of two apps"],
        ),
        (
            "[[app]]\nid = 1",
            ["who.toml:1:1: app[0].owner: is missing. The account that owns it. A text."],
        ),
        (
            '[[repository]]\nname = "site"',
            ["who.toml:2:1: repository[0].name: 'site' is not a repository: write owner and name, such as acme/site"],
        ),
    ],
)
def test_a_problem_is_reported_with_its_location_and_how_to_fix_it(text: str, expected: list[str]) -> None:
    assert problems_of(text) == expected


def test_a_secret_in_place_of_its_hash_is_not_printed() -> None:
    text = '[[user]]\nlogin = "a"\ntokens = [{ sha256 = "ghp_secret" }]'

    assert "ghp_secret" not in problems_of(text)[0]
