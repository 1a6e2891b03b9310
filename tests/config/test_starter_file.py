"""The file that `wharf config init` writes: valid as it is, valid with each comment turned into a setting, and explained."""

import stat
from pathlib import Path

import pytest

from tests.forked_command import run_wharf
from wharf.config.configuration import load_configuration
from wharf.config.starter_file import SETTINGS_BY_ROLE, AgentRole, render_starter_file
from wharf.config.tree import KeyPath, OriginKind

ROLES = list(AgentRole)


def set_all(text: str) -> str:
    """Return the file with each commented setting set, but only one source of the wrapping key."""
    lines = [line for line in text.splitlines() if not line.startswith("#secret =")]
    return "\n".join(line.removeprefix("#") if line[:2] != "# " else line for line in lines)


def list_set_keys(text: str, folder: Path) -> set[KeyPath]:
    """Return the keys that a file sets."""
    file = folder / "set.toml"
    file.write_text(text)
    configuration = load_configuration([file], environment={})
    return {path for path, origin in configuration.origins.items() if origin.kind is OriginKind.FILE}


@pytest.mark.parametrize(
    ("option", "role"), [(["--server"], "server"), (["--node"], "node"), (["--both"], "both"), ([], "both")]
)
def test_config_check_accepts_the_written_file(tmp_path: Path, option: list[str], role: str) -> None:
    written = run_wharf(tmp_path, "config", "init", *option)
    checked = run_wharf(tmp_path, "config", "check", "wharf.toml")

    file = tmp_path / "wharf.toml"
    assert written.stdout == "wrote wharf.toml; `wharf config check wharf.toml` checks it\n"
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "1 file is valid\n", "")
    assert file.read_text() == render_starter_file(AgentRole(role))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("role", ROLES)
def test_the_file_sets_the_role_of_the_agent(tmp_path: Path, role: AgentRole) -> None:
    keys = list_set_keys(render_starter_file(role), tmp_path)

    assert (("server", "enabled") in keys, ("client", "enabled") in keys) == (role != "node", role != "server")


@pytest.mark.parametrize("role", ROLES)
def test_each_comment_without_its_sign_is_a_valid_setting(tmp_path: Path, role: AgentRole) -> None:
    keys = list_set_keys(set_all(render_starter_file(role)), tmp_path)

    named = {setting.key for setting in SETTINGS_BY_ROLE[role]} - {"keyring.secret"}
    assert {".".join(path) for path in keys} == named


@pytest.mark.parametrize("role", ROLES)
def test_each_setting_follows_a_sentence_and_no_line_is_wide(role: AgentRole) -> None:
    lines = render_starter_file(role).splitlines()
    settings = [number for number, line in enumerate(lines) if " = " in line and not line.startswith("# ")]

    assert len(settings) == len(SETTINGS_BY_ROLE[role])
    assert [lines[number] for number in settings if not lines[number - 1].startswith("# ")] == []
    assert [line for line in lines if len(line) > 100] == []


def test_an_existing_file_is_replaced_only_with_force(tmp_path: Path) -> None:
    file = tmp_path / "wharf.toml"
    file.write_text('region = "eu"\n')

    refused = run_wharf(tmp_path, "config", "init", "--server")
    kept = file.read_text()
    forced = run_wharf(tmp_path, "config", "init", "--server", "--force")

    assert (refused.returncode, refused.stderr) == (
        1,
        "wharf: wharf.toml already exists: choose another file, or replace it with --force\n",
    )
    assert kept == 'region = "eu"\n'
    assert forced.returncode == 0
    assert file.read_text() == render_starter_file(AgentRole.SERVER)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--server", "--node"], "wharf: --server and --node exclude each other: use one of them\n"),
        (["wharf.yaml"], "wharf: wharf.yaml: the file is TOML, so its name must end with .toml\n"),
        (["missing/wharf.toml"], "wharf: cannot write missing/wharf.toml: No such file or directory\n"),
    ],
)
def test_a_wrong_argument_is_refused_with_the_reason(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = run_wharf(tmp_path, "config", "init", *arguments)

    assert (result.returncode, result.stderr) == (1, message)
    assert list(tmp_path.iterdir()) == []


def test_a_dash_prints_the_file(tmp_path: Path) -> None:
    result = run_wharf(tmp_path, "config", "init", "--node", "-")

    assert result.stdout == render_starter_file(AgentRole.NODE)
    assert list(tmp_path.iterdir()) == []
