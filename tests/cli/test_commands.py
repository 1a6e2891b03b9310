"""The commands as people type them: what they print, how they end, how little they load."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.processes import lines, run, running
from wharf.cli.lazy_group import LazyGroup
from wharf.cli.root import root


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from wharf.cli.root import root\n"
        "root.main(['--help'], prog_name='wharf', standalone_mode=False)\n"
        "print('LOADED', *(name for name in sys.modules if '.' not in name))\n"
        "print('OURS', *(name for name in sys.modules if name.startswith('wharf.')))\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    loaded = set(done.stdout.partition("LOADED")[2].partition("OURS")[0].split())
    ours = set(done.stdout.partition("OURS")[2].split())
    heavy = {"asyncio", "msgspec", "uvicorn", "starlette", "numpy", "cryptography", "rich", "httpx2", "uvloop", "apsw"}
    assert loaded & heavy == set()
    assert ours == {"wharf.cli", "wharf.cli.root", "wharf.cli.lazy_group"}


def all_groups(group: LazyGroup = root) -> list[tuple[str, LazyGroup]]:
    found = [(group.name or "", group)]
    for name in group.entries:
        command = group.get_command(group.make_context("wharf", ["--help"], resilient_parsing=True), name)
        if isinstance(command, LazyGroup):
            found += all_groups(command)
    return found


GROUPS = sorted(dict(all_groups()))


@pytest.mark.parametrize("name", GROUPS)
def test_the_lines_of_help_say_what_the_commands_say_of_themselves(name: str) -> None:
    group = dict(all_groups())[name]
    context = group.make_context("wharf", ["--help"], resilient_parsing=True)

    for command_name, entry in group.entries.items():
        command = group.get_command(context, command_name)
        assert command is not None
        first_line = (command.help or "").strip().splitlines()[0]
        assert first_line.startswith(entry.help.removesuffix(".")) or name == "wharf", command_name


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("devv",), "wharf: there is no command devv; did you mean `wharf dev`?"),
        (("config", "chek"), "wharf: there is no command chek; did you mean `wharf config check`?"),
        (("xyz",), "wharf: there is no command xyz; `wharf --help` lists all"),
        (("agent",), "wharf: Missing option '--config'; `wharf agent --help` tells more"),
        (("dev", "--port", "x"), "wharf: Invalid value for '--port': 'x' is not a whole number."),
        (("job", "scale", "web", "api", "x"), "wharf: Invalid value for '[COUNT]': 'x' is not a whole number."),
        (
            ("--address", "http://127.0.0.1:1", "status"),
            "wharf: there is no option --address here: options stand behind the command, as `wharf COMMAND --address …`",
        ),
        (
            ("job", "--detach", "run", "web.yaml"),
            "wharf: there is no option --detach here: options stand behind the command, as `wharf job COMMAND --detach …`",
        ),
        (
            ("config", "check", "gone.toml"),
            "wharf: gone.toml: there is no such file or folder: check the path",
        ),
        (
            ("config", "check", "--config", "gone.toml"),
            "wharf: gone.toml: there is no such file or folder: check the path",
        ),
        (
            ("config", "check"),
            "wharf: name a file or folder of configuration: `wharf config check PLACE`",
        ),
        (
            ("operator", "snapshot", "save", "gone/a"),
            "wharf: there is no folder gone: make it first",
        ),
        (
            ("tls", "create", "--name", "../x"),
            "wharf: --name ../x: expected the name of a file without its folder: letters, digits, '.', '_' and '-'",
        ),
        (
            ("operator", "snapshot", "inspect", "gone"),
            "wharf: the snapshot gone cannot be read: No such file or directory",
        ),
        (
            ("operator", "snapshot", "save", "--data-dir", "gone", "a"),
            "wharf: there is no data folder {here}/gone: name the agent's with --data-dir or --config",
        ),
        (
            ("operator", "debug", "--data-dir", "gone"),
            "wharf: there is no data folder {here}/gone: name the agent's with --data-dir or --config",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(tmp_path: Path, arguments: tuple[str, ...], line: str) -> None:
    done = run(tmp_path, *arguments)

    assert (done.returncode, lines(done.stderr), done.stdout) == (1, [line.format(here=tmp_path)], "")


def test_output_that_finds_no_room_is_told_in_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "wharf", "config", "show", "--json"],
            cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip

    assert (done.returncode, done.stderr) == (1, "wharf: the output cannot be written: No space left on device\n")


def test_version_is_told_to_people_and_programs(tmp_path: Path) -> None:
    assert run(tmp_path, "version").stdout.startswith("wharf 0.1.0 (Python 3.")
    assert json.loads(run(tmp_path, "version", "--json").stdout)["version"] == "0.1.0"
    assert run(tmp_path, "--version").stdout == "wharf 0.1.0\n"


def test_config_check_counts_what_is_right_and_lists_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "right.toml").write_text('data_dir = "/var/lib/wharf"\n[server]\nenabled = true\n')
    (tmp_path / "wrong.json").write_text('{\n"regoin": "eu"\n}')

    right = run(tmp_path, "config", "check", "right.toml")
    named = run(tmp_path, "config", "check", "--config", "right.toml")
    wrong = run(tmp_path, "config", "check", "right.toml", "wrong.json")

    assert (right.returncode, right.stdout) == (0, "1 file is right\n")
    assert (named.returncode, named.stdout) == (0, "1 file is right\n")
    assert wrong.returncode == 1
    assert lines(wrong.stderr) == ["wharf: wrong.json:2: regoin: there is no such setting; did you mean region?"]


def test_config_show_fits_a_wide_terminal_where_values_are_short(tmp_path: Path) -> None:
    done = run(tmp_path, "config", "show")

    widths = {line.split()[0]: len(line) for line in lines(done.stdout) if len(line.split()[1]) <= 20}
    assert len(widths) > 50
    assert {name: width for name, width in widths.items() if width > 100} == {}


def test_config_show_tells_values_and_where_they_come_from(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('data_dir = "/var/lib/wharf"\n[server]\nenabled = true\n')
    environment = {"WHARF_CONFIG__STATE__ETCD__PASSWORD": "hunter22", "WHARF_CONFIG__LOG_LEVEL": "debug"}

    done = run(tmp_path, "config", "show", "--config", "a.toml", "--json", environment=environment)
    people = run(tmp_path, "config", "show", "--config", "a.toml", "--changed", environment=environment)

    values = {value["key"]: (value["value"], value["origin"]) for value in json.loads(done.stdout)}
    assert values["data_dir"] == ("/var/lib/wharf", "a.toml:1")
    assert values["log_level"] == ("debug", "WHARF_CONFIG__LOG_LEVEL")
    assert values["state.etcd.password"] == ("<redacted>", "WHARF_CONFIG__STATE__ETCD__PASSWORD")
    assert values["ports.http"] == (4646, "default")
    assert [line.split()[0] for line in lines(people.stdout)] == [
        "data_dir",
        "log_level",
        "state.etcd.password",
        "server.enabled",
    ]
    assert "hunter22" not in done.stdout + people.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_names_the_command(tmp_path: Path, shell: str) -> None:
    done = run(tmp_path, "completion", shell)

    assert done.returncode == 0
    assert "_WHARF_COMPLETE" in done.stdout


def test_a_snapshot_is_saved_beside_a_running_agent_and_restored_without_one(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    with running(folder, "dev", "--port", "0") as agent:
        agent.wait_ready()
        saved = run(folder, "operator", "snapshot", "save", "a.snap", "--data-dir", ".wharf")
        before = (folder / "a.snap").read_bytes()
        again = run(folder, "operator", "snapshot", "save", "a.snap", "--data-dir", ".wharf")
        kept = (folder / "a.snap").read_bytes()
        forced = run(folder, "operator", "snapshot", "save", "a.snap", "--force", "--data-dir", ".wharf")
    inspected = run(folder, "operator", "snapshot", "inspect", "a.snap", "--json")
    unconfirmed = run(folder, "operator", "snapshot", "restore", "a.snap", "--data-dir", "other")

    assert saved.returncode == 0, saved.stderr
    assert (again.returncode, lines(again.stderr), kept) == (
        1,
        ["wharf: a.snap is there already: choose another name, or replace it with --force"],
        before,
    )
    assert forced.returncode == 0, forced.stderr
    assert json.loads(inspected.stdout)["trailer"]["rows"]["namespaces"] == 1
    assert (unconfirmed.returncode, lines(unconfirmed.stderr)[-1]) == (130, "wharf: stopped")
    assert "Nobody said yes; scripts say --yes" in lines(unconfirmed.stderr)
    restored = run(folder, "operator", "snapshot", "restore", "a.snap", "--yes", "--data-dir", "other")
    assert restored.returncode == 0, restored.stderr
    assert f"restored: {folder}/other/state, now at index" in restored.stdout
    # A snapshot holds no key: that is carried over by itself, or what is sealed in the snapshot could not be read.
    shutil.copy(folder / ".wharf" / "keyring.key", folder / "other")
    with running(folder, "dev", "--port", "0", "--data-dir", "other") as agent:
        agent.wait_ready()

        assert "bootstrapped cluster" not in agent.err


def test_a_snapshot_of_the_servers_is_fetched_whole_and_brings_back_what_was(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    with running(folder, "dev", "--port", "0") as agent:
        agent.wait_ready()
        there = {"WHARF_ADDR": agent.address}
        saved = run(folder, "operator", "snapshot", "save", "a.snap", environment=there)
        kept = (folder / "a.snap").read_bytes()
        again = run(folder, "operator", "snapshot", "save", "a.snap", environment=there)
        run(folder, "namespace", "apply", "late", environment=there)
        unconfirmed = run(folder, "operator", "snapshot", "restore", "a.snap", environment=there)
        spaces = [found["Name"] for found in as_list(agent.get("/v1/namespaces"))]
        (folder / "b.snap").write_bytes(kept[: len(kept) // 2])
        damaged = run(folder, "operator", "snapshot", "restore", "--yes", "b.snap", environment=there)
        restored = run(folder, "operator", "snapshot", "restore", "--yes", "a.snap", environment=there)

        assert (saved.returncode, lines(saved.stdout)[0]) == (0, "a.snap"), saved.stderr
        assert (again.returncode, (folder / "a.snap").read_bytes()) == (1, kept)
        assert (unconfirmed.returncode, spaces) == (130, ["default", "late"])
        assert damaged.returncode == 1
        assert lines(damaged.stderr)[0].startswith("wharf: the snapshot b.snap cannot be used: ")
        assert restored.returncode == 0, restored.stderr
        assert f"restored: the whole state, that of the servers at {agent.address}" in lines(restored.stdout)
        assert [found["Name"] for found in as_list(agent.get("/v1/namespaces"))] == ["default"]
    silent = run(folder, "operator", "snapshot", "save", "c.snap", environment={"WHARF_ADDR": "http://127.0.0.1:1"})

    assert silent.returncode == 1
    assert "cannot connect to http://127.0.0.1:1" in silent.stderr
    assert sorted(path.name for path in folder.glob("*.snap*")) == ["a.snap", "b.snap"]


def as_list(document: object) -> list[dict[str, object]]:
    assert isinstance(document, list)
    return document


def test_certificates_are_made_with_words_on_what_to_do_with_them(tmp_path: Path) -> None:
    server = run(tmp_path, "tls", "create", "--also", "example.org")
    client = run(tmp_path, "tls", "create", "--client")
    again = run(tmp_path, "tls", "create")

    assert (server.returncode, client.returncode, again.returncode) == (0, 0, 1)
    assert f'cert_file = "{tmp_path}/tls/server-global.pem"' in server.stdout
    assert "curl --cacert tls/wharf-ca.pem --cert tls/client-global.pem" in client.stdout
    assert "authority" not in client.stdout.splitlines()[0]
    assert lines(again.stderr) == [
        "wharf: tls/server-global.pem is there already and is not replaced: choose another --name or --folder"
    ]


@pytest.mark.parametrize("command", [("dev", "--port", "0"), ("agent", "--config", "wharf.toml")])
def test_the_last_line_of_an_agent_that_was_asked_to_end_says_that_it_stopped(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "wharf.toml").write_text(f'data_dir = "{tmp_path}/data"\n[ports]\nhttp = 0\n[server]\nenabled = true\n')
    with running(tmp_path, *command) as agent:
        agent.wait_ready()
        agent.signal(signal.SIGINT)

        assert agent.wait_end() == 0
        assert lines(agent.out)[-1] == "stopped"
