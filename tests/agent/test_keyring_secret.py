"""A server with `keyring.secret` writes no key to its disk or log, and does not start with another secret."""

from pathlib import Path

from tests.agent.processes import running
from tests.waiting import wait_until
from wharf.contract.model.wrapping_keys import encode_wrapping_key

VARIABLE = "WHARF_CONFIG__KEYRING__SECRET"
SECRET, OTHER_SECRET = encode_wrapping_key(b"a" * 32), encode_wrapping_key(b"b" * 32)


def test_a_server_starts_with_its_secret_only_and_leaves_it_nowhere(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "a.toml").write_text(f'data_dir = "{folder}/data"\nserver.enabled = true\nports.http = 0\n')
    with running(folder, "agent", "--config", "a.toml", environment={VARIABLE: SECRET}) as first:
        first.wait_ready()
        wait_until(lambda: first.get("/v1/operator/keyring/keys"), what="the log holds a key that the secret wraps")
        started = first.out + first.err
    files = [path.read_bytes() for path in (folder / "data").rglob("*") if path.is_file()]

    with running(folder, "agent", "--config", "a.toml", environment={VARIABLE: OTHER_SECRET}) as other:
        exit_code = other.wait_end()
        failed = other.out + other.err

    assert not (folder / "data/keyring.key").exists()
    assert [data for data in files if SECRET.encode() in data or b"a" * 32 in data] == []
    assert exit_code == 1
    assert "the key in keyring.secret (" in failed
    assert "is not the one that wraps the keyring in the log" in failed
    assert [secret for secret in (SECRET, OTHER_SECRET) if secret in started + failed] == []
