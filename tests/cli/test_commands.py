"""The commands as processes: their output, their exit codes, and the modules that `--help` loads."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.agent.processes import lines, run, running
from tests.forked_command import run_wharf
from wharf.cli.agent import describe_stop
from wharf.cli.lazy_group import LazyGroup
from wharf.cli.root import main, root


def test_help_loads_no_heavy_modules() -> None:
    code = (
        "import sys\n"
        "from wharf.cli.root import root\n"
        "root.main(['--help'], prog_name='wharf', standalone_mode=False)\n"
        "print('LOADED', *(name for name in sys.modules if '.' not in name))\n"
        "print('OURS', *(name for name in sys.modules if name.startswith('wharf.')))\n"
    )

    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    loaded = set(process.stdout.partition("LOADED")[2].partition("OURS")[0].split())
    own_modules = set(process.stdout.partition("OURS")[2].split())
    heavy = {"asyncio", "msgspec", "uvicorn", "starlette", "numpy", "cryptography", "rich", "httpx2", "uvloop", "apsw"}
    assert loaded & heavy == set()
    assert own_modules == {"wharf.cli", "wharf.cli.root", "wharf.cli.lazy_group"}


def all_groups(group: LazyGroup = root) -> list[tuple[str, LazyGroup]]:
    found = [(group.name or "", group)]
    for name in group.entries:
        command = group.get_command(group.make_context("wharf", ["--help"], resilient_parsing=True), name)
        if isinstance(command, LazyGroup):
            found += all_groups(command)
    return found


GROUPS = sorted(dict(all_groups()))


@pytest.mark.parametrize("name", GROUPS)
def test_help_lines_of_a_group_match_the_help_of_its_commands(name: str) -> None:
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
        (("devv",), "wharf: unknown command devv; did you mean `wharf dev`?"),
        (("config", "chek"), "wharf: unknown command chek; did you mean `wharf config check`?"),
        (("xyz",), "wharf: unknown command xyz; `wharf --help` lists the commands"),
        (("agent",), "wharf: Missing option '--config'; see `wharf agent --help`"),
        (("dev", "--port", "x"), "wharf: Invalid value for '--port': 'x' is not a whole number."),
        (("job", "scale", "web", "api", "x"), "wharf: Invalid value for '[COUNT]': 'x' is not a whole number."),
        (
            ("--address", "http://127.0.0.1:1", "status"),
            "wharf: unknown option --address: put options after the command, such as `wharf COMMAND --address …`",
        ),
        (
            ("job", "--detach", "run", "web.yaml"),
            "wharf: unknown option --detach: put options after the command, such as `wharf job COMMAND --detach …`",
        ),
        (
            ("job", "status", "-verbosee"),
            "wharf: unknown option -verbosee; did you mean `--verbose`?",
        ),
        (("job", "run", "--folow", "web.yaml"), "wharf: unknown option --folow; did you mean `--follow`?"),
        (("version", "-qq"), "wharf: unknown option -qq; see `wharf version --help`"),
        (("help", "jobb"), "wharf: unknown command jobb; did you mean `wharf job`?"),
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
            "wharf: missing configuration: `wharf config check PATH`",
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
def test_a_mistake_is_reported_in_one_line_with_exit_code_1(
    tmp_path: Path, arguments: tuple[str, ...], line: str
) -> None:
    process = run_wharf(tmp_path, *arguments)

    assert (process.returncode, lines(process.stderr), process.stdout) == (1, [line.format(here=tmp_path)], "")


@pytest.mark.parametrize(
    ("words", "usual"),
    [
        (("help",), ("--help",)),
        (("-help",), ("--help",)),
        (("help", "job", "run"), ("job", "run", "--help")),
        (("job", "help", "run"), ("job", "run", "--help")),
        (("job", "-help"), ("job", "--help")),
        (("job", "run", "-help"), ("job", "run", "--help")),
        (("-version",), ("--version",)),
    ],
)
def test_help_and_version_are_found_as_in_other_tools(
    tmp_path: Path, words: tuple[str, ...], usual: tuple[str, ...]
) -> None:
    found, expected = run_wharf(tmp_path, *words), run_wharf(tmp_path, *usual)

    assert (found.returncode, found.stdout) == (0, expected.stdout)
    assert found.stdout.startswith(("Usage: wharf", "wharf 0"))


def test_output_to_a_full_disk_is_reported_in_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full_device:
        process = subprocess.run(
            [sys.executable, "-m", "wharf", "config", "show", "--json"],
            cwd=tmp_path, stdout=full_device, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip

    assert (process.returncode, process.stderr) == (1, "wharf: cannot write the output: No space left on device\n")


def test_version_is_printed_as_text_and_as_json(tmp_path: Path) -> None:
    assert run(tmp_path, "version").stdout.startswith("wharf 0.1.0 (Python 3.")
    assert json.loads(run(tmp_path, "version", "--json").stdout)["version"] == "0.1.0"
    assert run(tmp_path, "--version").stdout == "wharf 0.1.0\n"


def test_a_command_that_calls_no_server_accepts_long_options_with_one_dash(capsys: pytest.CaptureFixture[str]) -> None:
    main(["version", "-json"])
    main(["version", "-format", "{{.version}}"])

    assert capsys.readouterr().out.endswith("\n}\n0.1.0\n")


def test_config_check_counts_valid_files_and_lists_errors(tmp_path: Path) -> None:
    (tmp_path / "right.toml").write_text('data_dir = "/var/lib/wharf"\n[server]\nenabled = true\n')
    (tmp_path / "wrong.json").write_text('{\n"regoin": "eu"\n}')

    valid = run_wharf(tmp_path, "config", "check", "right.toml")
    named = run_wharf(tmp_path, "config", "check", "--config", "right.toml")
    invalid = run_wharf(tmp_path, "config", "check", "right.toml", "wrong.json")

    assert (valid.returncode, valid.stdout) == (0, "1 file is valid\n")
    assert (named.returncode, named.stdout) == (0, "1 file is valid\n")
    assert invalid.returncode == 1
    assert lines(invalid.stderr) == ["wharf: wrong.json:2: regoin: there is no such setting; did you mean region?"]


@pytest.mark.parametrize("command", [("config", "check"), ("agent", "--config")])
def test_a_limits_file_that_does_not_exist_is_found_before_the_agent_begins_a_cluster(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "a.toml").write_text(
        f'data_dir = "{tmp_path}/data"\n[ports]\nhttp = 0\n[server]\nenabled = true\n[limits]\nenabled = true\n'
        f'file = "{tmp_path}/gone.toml"\n'
    )

    result = run_wharf(tmp_path, *command, "a.toml")

    assert (result.returncode, lines(result.stderr)) == (
        1,
        [f"wharf: {tmp_path}/gone.toml cannot be read: No such file or directory"],
    )
    assert not (tmp_path / "data").exists()


def test_config_show_fits_a_wide_terminal_if_values_are_short(tmp_path: Path) -> None:
    process = run_wharf(tmp_path, "config", "show")

    widths = {line.split()[0]: len(line) for line in lines(process.stdout) if len(line.split()[1]) <= 20}
    assert len(widths) > 50
    assert {name: width for name, width in widths.items() if width > 100} == {}


def test_config_show_prints_values_and_their_origins(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('data_dir = "/var/lib/wharf"\n[server]\nenabled = true\n')
    environment = {"WHARF_CONFIG__STATE__ETCD__PASSWORD": "hunter22", "WHARF_CONFIG__LOG_LEVEL": "debug"}

    process = run_wharf(tmp_path, "config", "show", "--config", "a.toml", "--json", environment=environment)
    people = run_wharf(tmp_path, "config", "show", "--config", "a.toml", "--only-changed", environment=environment)

    values = {value["key"]: (value["value"], value["origin"]) for value in json.loads(process.stdout)}
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
    assert "hunter22" not in process.stdout + people.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_calls_wharf(tmp_path: Path, shell: str) -> None:
    process = run_wharf(tmp_path, "completion", shell)

    assert process.returncode == 0
    assert "_WHARF_COMPLETE" in process.stdout


def test_a_snapshot_is_saved_beside_a_running_agent_and_restored_without_one(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    with running(folder, "dev", "--port", "0") as agent:
        agent.wait_ready()
        saved = run_wharf(folder, "operator", "snapshot", "save", "a.snap", "--data-dir", ".wharf")
        before = (folder / "a.snap").read_bytes()
        repeated = run_wharf(folder, "operator", "snapshot", "save", "a.snap", "--data-dir", ".wharf")
        stored = (folder / "a.snap").read_bytes()
        forced = run_wharf(folder, "operator", "snapshot", "save", "a.snap", "--force", "--data-dir", ".wharf")
    inspected = run_wharf(folder, "operator", "snapshot", "inspect", "a.snap", "--json")
    unconfirmed = run_wharf(folder, "operator", "snapshot", "restore", "a.snap", "--data-dir", "other")

    assert saved.returncode == 0, saved.stderr
    assert (repeated.returncode, lines(repeated.stderr), stored) == (
        1,
        ["wharf: a.snap exists already: choose another name, or replace it with --force"],
        before,
    )
    assert forced.returncode == 0, forced.stderr
    assert json.loads(inspected.stdout)["trailer"]["rows"]["namespaces"] == 1
    assert (unconfirmed.returncode, lines(unconfirmed.stderr)[-1]) == (130, "wharf: stopped")
    assert "not confirmed: without a terminal, confirm with --yes" in lines(unconfirmed.stderr)
    restored = run_wharf(folder, "operator", "snapshot", "restore", "a.snap", "--yes", "--data-dir", "other")
    assert restored.returncode == 0, restored.stderr
    assert f"restored {folder}/other/state (index " in restored.stdout
    # A snapshot holds no key. Without a copy of the keyring file, its sealed variables cannot be read.
    shutil.copy(folder / ".wharf" / "keyring.key", folder / "other")
    with running(folder, "dev", "--port", "0", "--data-dir", "other") as agent:
        agent.wait_ready()

        assert "bootstrapped cluster" not in agent.err


def test_a_downloaded_snapshot_is_complete_and_restores_the_state(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    with running(folder, "dev", "--port", "0") as agent:
        agent.wait_ready()
        existing = {"WHARF_ADDR": agent.address}
        saved = run_wharf(folder, "operator", "snapshot", "save", "a.snap", environment=existing)
        stored = (folder / "a.snap").read_bytes()
        repeated = run_wharf(folder, "operator", "snapshot", "save", "a.snap", environment=existing)
        run_wharf(folder, "namespace", "apply", "late", environment=existing)
        unconfirmed = run_wharf(folder, "operator", "snapshot", "restore", "a.snap", environment=existing)
        namespaces = [found["Name"] for found in as_list(agent.get("/v1/namespaces"))]
        (folder / "b.snap").write_bytes(stored[: len(stored) // 2])
        damaged = run_wharf(folder, "operator", "snapshot", "restore", "--yes", "b.snap", environment=existing)
        restored = run_wharf(folder, "operator", "snapshot", "restore", "--yes", "a.snap", environment=existing)

        assert (saved.returncode, lines(saved.stdout)[0]) == (0, "a.snap"), saved.stderr
        assert (repeated.returncode, (folder / "a.snap").read_bytes()) == (1, stored)
        assert (unconfirmed.returncode, namespaces) == (130, ["default", "late"])
        assert damaged.returncode == 1
        assert "the file b.snap is damaged or is no snapshot" in damaged.stderr
        assert restored.returncode == 0, restored.stderr
        assert f"restored the state of the servers at {agent.address}" in lines(restored.stdout)
        assert [found["Name"] for found in as_list(agent.get("/v1/namespaces"))] == ["default"]
    silent = run_wharf(
        folder, "operator", "snapshot", "save", "c.snap", environment={"WHARF_ADDR": "http://127.0.0.1:1"}
    )

    assert silent.returncode == 1
    assert "cannot connect to http://127.0.0.1:1" in silent.stderr
    assert sorted(path.name for path in folder.glob("*.snap*")) == ["a.snap", "b.snap"]


def as_list(document: object) -> list[dict[str, object]]:
    assert isinstance(document, list)
    return document


def test_certificates_are_created_with_instructions_for_their_use(tmp_path: Path) -> None:
    server = run_wharf(tmp_path, "tls", "create", "--san", "example.org")
    client = run_wharf(tmp_path, "tls", "create", "--client")
    repeated = run_wharf(tmp_path, "tls", "create")

    assert (server.returncode, client.returncode, repeated.returncode) == (0, 0, 1)
    assert f'cert_file = "{tmp_path}/tls/server-global.pem"' in server.stdout
    assert "curl --cacert tls/wharf-ca.pem --cert tls/client-global.pem" in client.stdout
    assert "authority" not in client.stdout.splitlines()[0]
    assert lines(repeated.stderr) == [
        "wharf: tls/server-global.pem exists already and is not replaced: choose another --name or --output-dir"
    ]


@pytest.mark.parametrize("command", [("dev", "--port", "0"), ("agent", "--config", "wharf.toml")])
def test_the_last_line_of_an_agent_after_sigint_is_stopped(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "wharf.toml").write_text(f'data_dir = "{tmp_path}/data"\n[ports]\nhttp = 0\n[server]\nenabled = true\n')
    with running(tmp_path, *command) as agent:
        agent.wait_ready()
        agent.signal(signal.SIGINT)

        assert agent.wait_end() == 0
        assert lines(agent.out)[-1] == "stopped"


@pytest.mark.parametrize(
    ("count", "begin"),
    [
        (0, "stopped"),
        (1, "stopped; 1 program of a task keeps running"),
        (2, "stopped; 2 programs of tasks keep running"),
    ],
)
def test_an_agent_that_stops_says_how_many_programs_keep_running(count: int, begin: str) -> None:
    assert describe_stop(count).partition(", and the agent")[0] == begin


def find_command(words: tuple[str, ...]) -> click.Command:
    command: click.Command = root
    for word in words:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None, word
        command = found
    return command


RENAMED_OPTIONS = [
    (("dev",), "--fresh", "--reset-data"),
    (("gateway",), "--data", "--data-dir"),
    (("tls", "create"), "--folder", "--output-dir"),
    (("tls", "create"), "--also", "--san"),
    (("tls", "create"), "--authority-days", "--ca-days"),
    (("var", "put"), "--in", "--file"),
    (("job", "restart"), "--wait", "--timeout"),
    (("operator", "rebalance"), "--plan", "--dry-run"),
    (("config", "show"), "--changed", "--only-changed"),
    (("limits", "top"), "--socket", "--admin-address"),
    (("limits", "grant"), "--for", "--duration"),
    (("limits", "ban"), "--for", "--duration"),
    (("limits", "demo"), "--seconds", "--duration"),
    (("limits", "lint"), "--before", "--compare-with"),
    (("limits", "activity"), "--by", "--group-by"),
]


@pytest.mark.parametrize(("words", "former", "current"), RENAMED_OPTIONS)
def test_a_former_name_of_an_option_is_accepted_but_not_shown_in_help(
    words: tuple[str, ...], former: str, current: str
) -> None:
    command = find_command(words)
    context = click.Context(command)
    option = next(param for param in command.params if current in param.opts)
    assert isinstance(option, click.Option)
    values = [] if option.is_flag else ["1"]

    by_former_name, _, _ = command.make_parser(context).parse_args([former, *values])
    by_current_name, _, _ = command.make_parser(context).parse_args([current, *values])

    assert by_former_name == by_current_name != {}
    assert f"{current} " in command.get_help(context)
    assert f"{former} " not in command.get_help(context)


@pytest.mark.parametrize(
    ("former", "current"), [("why", "explain"), ("off", "disable"), ("on", "enable"), ("drill", "simulate-outage")]
)
def test_a_former_name_of_a_command_is_accepted_but_not_shown_in_help(former: str, current: str) -> None:
    limits = find_command(("limits",))

    assert find_command(("limits", former)) is find_command(("limits", current))
    assert f"\n  {current} " in limits.get_help(click.Context(limits))
    assert f"\n  {former} " not in limits.get_help(click.Context(limits))
