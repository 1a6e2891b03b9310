"""Folders and files of an agent that other users can write to are refused: whoever writes to them could become management."""

import base64
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.agent.processes import lines, run
from wharf.agent.bootstrap_reset import ACL_RESET_FILE, BootstrapResetFile
from wharf.agent.data_folder import DataFolder
from wharf.agent.errors import CommandError, StartupError
from wharf.agent.keyring_file import read_wrapping_keys
from wharf.cli.config import check

OTHER_ID = 65_534
KEY = base64.b64encode(bytes(32))


def make_folder(path: Path, mode: int = 0o700, *, user_id: int = -1, group_id: int = -1) -> Path:
    path.mkdir()
    os.chown(path, user_id, group_id)
    path.chmod(mode)
    return path


def configure(folder: Path, data_folder: Path, more: str = "") -> Path:
    file = folder / "wharf.toml"
    file.write_text(f'data_dir = "{data_folder}"\n[ports]\nhttp = 0\n[server]\nenabled = true\n{more}')
    return file


def check_configuration(file: Path) -> tuple[int, str]:
    result = CliRunner().invoke(check, [str(file)])
    return result.exit_code, result.output


def acquire(folder: Path, setting: str = "--data-dir") -> None:
    opened = DataFolder(folder, setting=setting)
    opened.acquire(owner="this test")
    opened.release()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_an_agent_refuses_a_data_folder_that_every_user_can_write_to(tmp_path: Path, mode: int) -> None:
    data_folder = make_folder(tmp_path / "data", mode)

    process = run(tmp_path, "agent", "--config", str(configure(tmp_path, data_folder)))

    assert process.returncode == 1
    assert lines(process.stderr) == [
        f"wharf: every user can write to the data folder {data_folder} (mode {mode:04o}): check that every file in it is "
        f"yours, and run `chmod go-w {data_folder}`; or choose another folder with --data-dir"
    ]
    assert list(data_folder.iterdir()) == []


@pytest.mark.parametrize("setting", ["client.state_dir", "client.alloc_dir"])
def test_a_folder_of_a_node_that_every_user_can_write_to_is_refused(tmp_path: Path, setting: str) -> None:
    folder = make_folder(tmp_path / "folder", 0o777)

    with pytest.raises(CommandError, match=rf"every user can write to the folder .* with {setting}"):
        acquire(folder, setting)


@pytest.mark.needs("file_owners")
def test_a_data_folder_that_another_group_can_write_to_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "data", 0o770, group_id=OTHER_ID)

    with pytest.raises(CommandError, match=r"the group \w+ can write to .* \(mode 0770\).* `chmod g-w "):
        acquire(folder)


@pytest.mark.needs("file_owners")
@pytest.mark.parametrize("setting", ["client.state_dir", "client.alloc_dir"])
def test_a_folder_of_a_node_that_belongs_to_another_user_is_refused(tmp_path: Path, setting: str) -> None:
    folder = make_folder(tmp_path / "folder", user_id=OTHER_ID)

    with pytest.raises(CommandError, match="belongs to the user nobody"):
        acquire(folder, setting)


@pytest.mark.parametrize("mode", [0o700, 0o711, 0o755, 0o770, 0o775, 0o2775])
def test_a_folder_that_only_this_user_and_its_group_can_write_to_is_used(tmp_path: Path, mode: int) -> None:
    acquire(make_folder(tmp_path / "data", mode, group_id=os.getegid()))


def test_a_data_folder_that_is_created_is_private_whatever_the_umask_permits(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        acquire(tmp_path / "data")
    finally:
        os.umask(before)

    assert (tmp_path / "data").stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize("setting", ["data_dir", "client.state_dir", "client.alloc_dir"])
def test_a_check_of_the_configuration_refuses_a_folder_that_others_can_write_to(tmp_path: Path, setting: str) -> None:
    folder = make_folder(tmp_path / "open", 0o777)
    data_folder = folder if setting == "data_dir" else make_folder(tmp_path / "data")
    name = setting.partition(".")[2]
    more = f'[client]\nenabled = true\n{name} = "{folder}"\n' if name else ""

    code, text = check_configuration(configure(tmp_path, data_folder, more))

    assert code == 1
    assert "every user can write to the" in text
    assert text.rstrip().endswith(f"choose another folder with {setting}")


PROGRAM_FOLDERS = ("client.cni_path", "client.cni_config_dir", "client.host_volume_plugin_dir")


@pytest.mark.parametrize("setting", PROGRAM_FOLDERS)
def test_a_folder_of_programs_that_every_user_can_write_to_is_refused(tmp_path: Path, setting: str) -> None:
    folder = make_folder(tmp_path / "programs", 0o777)
    value = f"{tmp_path}/missing:{folder}" if setting == "client.cni_path" else str(folder)
    more = f'[client]\nenabled = true\n{setting.partition(".")[2]} = "{value}"\n'
    file = configure(tmp_path, tmp_path / "data", more)

    code, text = check_configuration(file)
    process = run(tmp_path, "agent", "--config", str(file))

    assert (code, process.returncode) == (1, 1)
    expected = (
        f"every user can write to the folder {folder} (mode 0777): check that every file in it is yours, and run "
        f"`chmod go-w {folder}`; or choose another folder with {setting}"
    )
    assert expected in text
    assert lines(process.stderr) == [f"wharf: {expected}"]


def test_a_folder_of_programs_is_not_checked_without_a_node(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "programs", 0o777)
    file = configure(tmp_path, tmp_path / "data", f'[client]\ncni_path = "{folder}"\n')

    assert check_configuration(file)[0] == 0


def test_a_check_of_the_configuration_accepts_a_data_folder_that_does_not_exist(tmp_path: Path) -> None:
    code, text = check_configuration(configure(tmp_path, tmp_path / "data"))

    assert (code, text) == (0, "1 file is valid\n")
    assert not (tmp_path / "data").exists()


@pytest.mark.needs("file_owners")
def test_root_can_check_the_configuration_of_an_agent_of_another_user(tmp_path: Path) -> None:
    data_folder = make_folder(tmp_path / "data", user_id=OTHER_ID, group_id=OTHER_ID)
    (data_folder / "keyring.key").write_bytes(KEY)
    (data_folder / "keyring.key").chmod(0o600)
    os.chown(data_folder / "keyring.key", OTHER_ID, OTHER_ID)

    assert check_configuration(configure(tmp_path, data_folder)) == (0, "1 file is valid\n")


@pytest.mark.parametrize(
    ("content", "mode", "expected"),
    [(KEY, 0o644, "is open to others (mode 0644): chmod 600"), (b"short", 0o600, "is invalid: expected 1 to 16 keys")],
)
def test_a_check_of_the_configuration_refuses_a_keyring_file_that_the_agent_refuses(
    tmp_path: Path, content: bytes, mode: int, expected: str
) -> None:
    file = tmp_path / "wrapping.key"
    file.write_bytes(content)
    file.chmod(mode)

    code, text = check_configuration(configure(tmp_path, tmp_path / "data", f'[keyring]\nfile = "{file}"\n'))

    assert code == 1
    assert expected in text


def write_keyring(folder: Path) -> Path:
    file = folder / "wrapping.key"
    file.write_bytes(KEY)
    file.chmod(0o600)
    return file


def test_a_keyring_file_that_every_user_can_replace_is_refused(tmp_path: Path) -> None:
    file = write_keyring(make_folder(tmp_path / "keys", 0o777))

    with pytest.raises(StartupError, match="every user can write to the folder of the keyring file"):
        read_wrapping_keys(file)


def test_a_keyring_file_is_used_in_a_sticky_folder_such_as_the_mounted_secrets_of_a_container(tmp_path: Path) -> None:
    file = write_keyring(make_folder(tmp_path / "keys", 0o1777))

    assert read_wrapping_keys(file) == [bytes(32)]


@pytest.mark.needs("file_owners")
def test_a_keyring_file_of_another_user_is_refused(tmp_path: Path) -> None:
    file = write_keyring(tmp_path)
    os.chown(file, OTHER_ID, OTHER_ID)

    with pytest.raises(StartupError, match="belongs to another user"):
        read_wrapping_keys(file)


def write_reset_file(folder: Path, mode: int = 0o644) -> Path:
    file = folder / ACL_RESET_FILE
    file.write_text("9\n")
    file.chmod(mode)
    return file


def test_a_reset_file_of_this_user_is_read(tmp_path: Path) -> None:
    write_reset_file(tmp_path)

    assert BootstrapResetFile(tmp_path).read() == "9\n"


@pytest.mark.needs("file_owners")
def test_a_reset_file_of_another_user_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.chown(write_reset_file(tmp_path), OTHER_ID, OTHER_ID)

    assert BootstrapResetFile(tmp_path).read() is None
    assert "belongs to the user with the id 65534" in caplog.records[0].__dict__["why"]


def test_a_reset_file_that_others_can_write_to_is_refused_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_reset_file(tmp_path, 0o666)
    file = BootstrapResetFile(tmp_path)

    assert [file.read() for _ in range(3)] == [None] * 3
    assert [each.__dict__["why"] for each in caplog.records] == ["every user can write to it (mode 0666): chmod go-w"]


def test_a_link_is_no_reset_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_reset_file(tmp_path).rename(tmp_path / "elsewhere")
    (tmp_path / ACL_RESET_FILE).symlink_to(tmp_path / "elsewhere")

    assert BootstrapResetFile(tmp_path).read() is None
    assert caplog.records[0].__dict__["why"] == "it is a link: replace it by a plain file"


def test_a_pipe_is_no_reset_file_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ACL_RESET_FILE, 0o600)

    assert BootstrapResetFile(tmp_path).read() is None
