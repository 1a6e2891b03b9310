"""The wrapping key as text: what is a valid one, where it may be, and that no message quotes it."""

import os
from pathlib import Path

import pytest

from tests.forked_command import run_wharf
from wharf.config.configuration import load_configuration
from wharf.config.errors import ConfigurationError
from wharf.contract.model.wrapping_keys import decode_wrapping_keys, encode_wrapping_key

SECRET = encode_wrapping_key(b"s" * 32)
VARIABLE = "WHARF_CONFIG__KEYRING__SECRET"


def write(folder: Path, *lines: str, mode: int = 0o600) -> Path:
    file = folder / "wharf.toml"
    head = (f'data_dir = "{folder}/data"', "server.enabled = true")
    file.write_text("\n".join([*head, *lines]) + "\n")
    file.chmod(mode)
    return file


def read_problems(file: Path, environment: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load_configuration([file], environment=environment)
    return [str(problem) for problem in caught.value.problems]


def test_the_secret_can_be_in_a_private_file_or_in_a_variable(tmp_path: Path) -> None:
    in_file = load_configuration([write(tmp_path, f'keyring.secret = "{SECRET}"')], environment={})
    in_variable = load_configuration([write(tmp_path, mode=0o644)], environment={VARIABLE: SECRET})

    assert in_file.settings.keyring.secret.reveal() == in_variable.settings.keyring.secret.reveal() == SECRET


def test_a_file_with_the_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, f'keyring.secret = "{SECRET}"', mode=0o640)

    assert read_problems(file, {}) == [
        f"{file}:3: keyring.secret: other users have access to the file (mode 0640): replace the secret, and chmod 600 {file}"
    ]


@pytest.mark.parametrize(
    "text", ["geheim", "A" * 44, SECRET[:-2], f"{SECRET} x", SECRET * 2, " ".join([SECRET] * 17), "ä"]
)
def test_a_text_that_is_no_key_is_refused_and_not_quoted(tmp_path: Path, text: str) -> None:
    problems = read_problems(write(tmp_path), {VARIABLE: text})

    assert problems == [
        f"{VARIABLE}: keyring.secret: expected 1 to 16 keys of 32 bytes as base64 text: use the secret of the first server, or "
        "`wharf operator keyring generate`"
    ]


def test_a_file_and_a_text_are_not_both_accepted(tmp_path: Path) -> None:
    (problem,) = read_problems(write(tmp_path, 'keyring.file = "/etc/wharf/keyring.key"'), {VARIABLE: SECRET})

    assert problem.startswith(f"{VARIABLE}: keyring.secret: keyring.file is set too")


def test_two_keys_are_separated_by_spaces_commas_or_lines() -> None:
    other = encode_wrapping_key(b"t" * 32)

    for separator in (" ", ",", "\n", ", "):
        assert decode_wrapping_keys(f"{SECRET}{separator}{other}") == [b"s" * 32, b"t" * 32]


def test_generated_secrets_are_valid_and_differ(tmp_path: Path) -> None:
    texts = [run_wharf(tmp_path, "operator", "keyring", "generate").stdout for _ in range(2)]

    assert [len(decode_wrapping_keys(text)) for text in texts] == [1, 1]
    assert texts[0] != texts[1]


def test_config_show_hides_the_secret(tmp_path: Path) -> None:
    file = write(tmp_path, f'keyring.secret = "{SECRET}"')

    shown = run_wharf(tmp_path, "config", "show", "--config", str(file), environment=dict(os.environ))

    assert "keyring.secret" in shown.stdout
    assert SECRET not in shown.stdout + shown.stderr
