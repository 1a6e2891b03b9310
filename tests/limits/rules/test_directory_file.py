"""Reading a directory file: what is said of its mistakes. What it means is tested with recognition."""

import pytest

from wharf.limits.rules import InvalidFile, read_directory

HASH = "a" * 64


def problems_of(text: str) -> list[str]:
    with pytest.raises(InvalidFile) as refused:
        read_directory(text, "who.toml")
    return [str(problem) for problem in refused.value.problems]


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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[usr]]\nlogin = "a"', ["who.toml:1:1: usr: is not known; did you mean 'user'?"]),
        ("[[user]]\nid = 3", ["who.toml:1:1: user[0].login: is missing. The login. The name of an account."]),
        (
            '[[user]]\nlogin = "ada l"',
            ['who.toml:2:1: user[0].login: "ada l" is no name of an account: it holds a space or a slash'],
        ),
        (
            '[[user]]\nlogin = "a"\ntokens = [\n  { sha256 = "ghp_secret" },\n]',
            [
                "who.toml:4:5: user[0].tokens[0].sha256: is no SHA-256: write its 64 hexadecimal digits in small "
                "letters, never the secret itself"
            ],
        ),
        (
            f'[[user]]\nlogin = "a"\ntokens = [{{ sha256 = "{HASH}" }}, {{ sha256 = "{HASH}" }}]',
            ["who.toml:3:94: user[0].tokens[1].sha256: the same token is here twice: it can be of one owner only"],
        ),
        (
            f'[[user]]\nlogin = "a"\ntokens = [{{ sha256 = "{HASH}", app = 9 }}]',
            ["who.toml:3:90: user[0].tokens[0].app: there is no app 9: add it as [[app]] with `id = 9`"],
        ),
        (
            f'[[user]]\nlogin = "a"\ntokens = [{{ sha256 = "{HASH}", expires = "2027" }}]',
            [
                'who.toml:3:90: user[0].tokens[0].expires: "2027" is no moment: write it without quotation marks and '
                "with its offset, as 2027-01-31T12:00:00Z"
            ],
        ),
        (
            '[[user]]\nlogin = "ada"\n[[organization]]\nlogin = "acme"\nmembers = ["adda"]',
            ["who.toml:5:1: organization[0].members: 'adda' is no user; did you mean 'ada'?"],
        ),
        (
            '[[organization]]\nlogin = "acme"\nenterprise = "x"',
            ["who.toml:3:1: organization[0].enterprise: 'x' is no enterprise: add it as [[enterprise]]"],
        ),
        (
            '[[organization]]\nlogin = "acme"\n[[app]]\nid = 1\nowner = "acne"',
            ["who.toml:5:1: app[0].owner: 'acne' is no account; did you mean 'acme'?"],
        ),
        (
            '[[organization]]\nlogin = "acme"\n[[app]]\nid = 1\nowner = "acme"\n[[app]]\nid = 1\nowner = "acme"',
            ["who.toml:7:1: app[1].id: 1 is the number of two apps"],
        ),
        (
            '[[repository]]\nname = "site"',
            ["who.toml:2:1: repository[0].name: 'site' is no repository: write its owner and its name, as acme/site"],
        ),
    ],
)
def test_a_mistake_is_told_with_file_line_column_and_how_to_mend_it(text: str, said: list[str]) -> None:
    assert problems_of(text) == said


def test_a_secret_written_in_the_place_of_its_hash_is_not_repeated() -> None:
    text = '[[user]]\nlogin = "a"\ntokens = [{ sha256 = "ghp_secret" }]'

    assert "ghp_secret" not in problems_of(text)[0]
