"""The key that wraps the keyring: a file that is created once and read by every server, or a text. A wrong key is an error."""

import base64
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.api.access import ApiCaller
from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.agent.errors import StartupError
from wharf.agent.keyring_file import load_keyring
from wharf.agent.startup import check_reloaded_files
from wharf.cluster.server.settings import KeyringSettings, ServerSettings
from wharf.cluster.state.tables import KEYRING
from wharf.config.settings import AgentSettings
from wharf.contract.model.settings import SecretText
from wharf.world import RealWorld


@in_virtual_time
async def _create_keyring(file: Path) -> None:
    async with ACluster() as cluster:
        member = await cluster.a_server()
        load_keyring(member.server, file)


def test_the_first_start_creates_a_private_keyring_file(tmp_path: Path) -> None:
    file = tmp_path / "keyring.key"

    _create_keyring(file)

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(base64.b64decode(file.read_bytes())) == 32
    assert list(tmp_path.iterdir()) == [file]


def test_an_existing_key_is_never_replaced(tmp_path: Path) -> None:
    file = tmp_path / "keyring.key"
    _create_keyring(file)
    before = file.read_bytes()

    _create_keyring(file)

    assert file.read_bytes() == before


def encode_key(number: int) -> str:
    return base64.b64encode(bytes([number]) * 32).decode() + "\n"


def write_keyring(path: Path, *numbers: int) -> Path:
    path.write_text("".join(encode_key(number) for number in numbers))
    path.chmod(0o600)
    return path


def test_variables_stay_readable_while_the_wrapping_key_is_changed_in_three_steps(tmp_path: Path) -> None:
    file = tmp_path / "keyring.key"
    items = {"a": "1"}

    @in_virtual_time
    async def scenario() -> None:
        async with ACluster() as cluster:
            leader, follower = await cluster.a_server("m1"), await cluster.a_server("m2", leads=False)
            servers = (leader, follower)

            def load_on_all_servers(*numbers: int) -> None:
                for server in servers:
                    load_keyring(server.server, write_keyring(file, *numbers))

            async def read_variable_on_all_servers() -> list[object]:
                return [(await ApiCaller(server).get("/v1/var/db"))[1]["Items"] for server in servers]

            load_on_all_servers(1)
            assert (await ApiCaller(leader).put("/v1/var/db", {"Items": items}))[0] == 200
            (first,) = leader.replica.iter_all(KEYRING)

            load_on_all_servers(1, 2)
            await pass_time(1.0)
            assert (list(leader.replica.iter_all(KEYRING)), await read_variable_on_all_servers()) == (
                [first],
                [items] * 2,
            )

            load_on_all_servers(2, 1)
            await pass_time(1.0)
            (rotated,) = leader.replica.iter_all(KEYRING)
            assert (rotated.key_id == first.key_id, rotated.wrapped_with == first.wrapped_with) == (True, False)
            assert await read_variable_on_all_servers() == [items] * 2

            load_on_all_servers(2)
            assert await read_variable_on_all_servers() == [items] * 2
            with pytest.raises(StartupError, match="is not the one that wraps the keyring in the log"):
                load_keyring(leader.server, write_keyring(file, 1))
            assert await read_variable_on_all_servers() == [items] * 2

    scenario()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda key: key.unlink(), "is missing, and the log holds keys that it wraps"),
        (lambda key: key.write_text("no key"), "is invalid: expected 1 to 16 keys of 32 bytes as base64 text"),
        (lambda key: key.write_text("A" * 43 + "=\n"), "is not the one that wraps the keyring in the log"),
        (lambda key: key.chmod(0o644), "is open to others (mode 0644): chmod 600"),
    ],
)
def test_a_missing_or_invalid_keyring_file_is_reported_with_the_remedy(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    file = tmp_path / "keyring.key"

    @in_virtual_time
    async def restart() -> None:
        async with ACluster() as cluster:
            member: OneServer = await cluster.a_server()
            load_keyring(member.server, file)
            assert (await ApiCaller(member).put("/v1/var/db", {"Items": {"a": "1"}}))[0] == 200
            damage(file)

            with pytest.raises(StartupError) as caught:
                load_keyring(member.server, file)

            assert message in str(caught.value)

    restart()


def test_a_reload_refuses_a_keyring_file_at_a_path_that_the_system_refuses(tmp_path: Path) -> None:
    file = tmp_path / "keyring.key"
    file.symlink_to("x" * 300)  # Longer than a file name may be.
    settings = AgentSettings(
        data_dir=str(tmp_path), server=ServerSettings(enabled=True), keyring=KeyringSettings(file=str(file))
    )

    with pytest.raises(StartupError, match="cannot be read: File name too long"):
        check_reloaded_files(settings, settings, now_ns=RealWorld().now_ns())


def test_with_the_secret_as_text_a_second_server_needs_no_file(tmp_path: Path) -> None:
    """A cluster that began with a file continues with its content as the text."""
    file, missing_file = write_keyring(tmp_path / "keyring.key", 1), tmp_path / "other" / "keyring.key"

    @in_virtual_time
    async def scenario() -> None:
        async with ACluster() as cluster:
            leader, follower = await cluster.a_server("m1"), await cluster.a_server("m2", leads=False)
            load_keyring(leader.server, file)
            load_keyring(follower.server, missing_file, SecretText(file.read_text()))
            assert (await ApiCaller(leader).put("/v1/var/db", {"Items": {"a": "1"}}))[0] == 200
            assert (await ApiCaller(follower).get("/v1/var/db"))[1]["Items"] == {"a": "1"}

    scenario()
    assert not missing_file.parent.exists()


def test_a_wrong_secret_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with ACluster() as cluster:
            leader, follower = await cluster.a_server("m1"), await cluster.a_server("m2", leads=False)
            load_keyring(leader.server, write_keyring(tmp_path / "keyring.key", 1))
            assert (await ApiCaller(leader).put("/v1/var/db", {"Items": {"a": "1"}}))[0] == 200
            before = leader.replica.index

            with pytest.raises(StartupError) as caught:
                load_keyring(follower.server, tmp_path / "other.key", SecretText(encode_key(2)))

            assert leader.replica.index == before
            assert str(caught.value).startswith("the key in keyring.secret (")
            assert "is not the one that wraps the keyring in the log" in str(caught.value)
            assert encode_key(2).strip() not in str(caught.value)

    scenario()
    assert not (tmp_path / "other.key").exists()
