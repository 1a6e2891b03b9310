"""The command `nomad`: the table of Nomad's commands and options, their translation, and the link."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.cli.terminal import WEB, Terminal, open_terminal, write_file
from wharf.cli.common.errors import CliError
from wharf.cli.common.server_commands import ServerCommand
from wharf.cli.lazy_group import LazyGroup
from wharf.cli.nomad.command_table import ALIASES, COMMANDS, CONNECTION_OPTIONS, POSITIONAL, REMOTE_COMMANDS
from wharf.cli.nomad.compat import translate_arguments
from wharf.cli.root import main, root

AVAILABLE = {name: command for name, command in COMMANDS.items() if command.wharf}
UPDATE = "    Update: {MinHealthyTime: 1s}\n"
CONNECTION_NAMES = {word.rstrip("=") for word in CONNECTION_OPTIONS.split()}


def find_command(words: str) -> click.Command:
    """Return the command of `wharf` with these words, and the default command of a group."""
    found: click.Command = root
    for word in words.split():
        assert isinstance(found, LazyGroup)
        command = found.get_command(click.Context(found), word)
        assert command is not None, words
        found = command
    if isinstance(found, LazyGroup) and found.default_command:
        default = found.get_command(click.Context(found), found.default_command)
        assert default is not None
        return default
    assert not isinstance(found, click.Group), words
    return found


def list_options(command: click.Command) -> dict[str, bool]:
    """Return whether each option of a command takes a value, by its name without dashes."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    return {
        name.lstrip("-"): not option.is_flag
        for option in options
        for name in (*option.opts, *option.secondary_opts, *getattr(option, "former_names", ()))
    }


@pytest.mark.parametrize("name", AVAILABLE)
def test_a_command_of_nomad_names_a_command_of_wharf_with_its_options(name: str) -> None:
    command = find_command(COMMANDS[name].wharf)
    known = list_options(command)
    problems = []
    for old, new in COMMANDS[name].option_names.items():
        if old.rstrip("=") in CONNECTION_NAMES and not isinstance(command, ServerCommand):
            continue
        if new.rstrip("=") == POSITIONAL:
            continue
        problems += [
            f"{old} -> {each}"
            for each in new.rstrip("=").split("/")
            if each not in known or known[each] is not new.endswith("=")
        ]

    assert problems == []


@pytest.mark.parametrize("name", AVAILABLE)
def test_an_option_is_translated_ignored_or_refused_and_only_one_of_them(name: str) -> None:
    command = COMMANDS[name]
    names = [
        *(old.rstrip("=") for old in command.option_names if old.rstrip("=") not in command.refused),
        *command.ignored.split(),
        *command.refused,
    ]

    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_runs_one_of_wharf_or_has_a_reason_why_none_does(name: str) -> None:
    assert bool(COMMANDS[name].wharf) != bool(COMMANDS[name].reason)


def test_each_further_name_belongs_to_a_command_of_the_table() -> None:
    assert [name for name in (*ALIASES.values(), *REMOTE_COMMANDS) if name not in COMMANDS] == []


@pytest.mark.parametrize(
    ("nomad", "wharf"),
    [
        ("job run -detach web.hcl", "job run --detach web.hcl"),
        ("run -var x=y -var-file=a.vars web.hcl", "job run --var x=y --var-file a.vars web.hcl"),
        ("job run -json web.json", "job run web.json"),
        ("job run -hcl2-strict=false -verbose web.hcl", "job run --hcl2-strict=false web.hcl"),
        ("job run -hcl2-strict web.hcl", "job run --hcl2-strict=true web.hcl"),
        ("job plan -diff=false web.hcl", "job plan --no-diff web.hcl"),
        ("job plan -diff web.hcl", "job plan --diff web.hcl"),
        ("job stop -purge=true -detach=false web", "job stop --purge web"),
        ("job status -short -json", "job status --json"),
        ("node status -stats -self", "node status --stats --self"),
        ("alloc logs -f -n 5 -task main 1a2b", "alloc logs -f -n 5 --task main 1a2b"),
        ("logs -stderr 1a2b", "alloc logs --stderr 1a2b"),
        ("eval list -job web -t {{.}}", "eval list --job web -t {{.}}"),
        ("job status -address=http://a:1 -namespace shop", "job status --address http://a:1 --namespace shop"),
        ("alloc exec -task main 1a2b ls -t -job x", "alloc exec -t --task main 1a2b ls -t -job x"),
        ("alloc exec -t=false -i 1a2b sh", "alloc exec -i 1a2b sh"),
        ("var lock -ttl 20s jobs/web ./run -detach", "var lock --ttl 20s jobs/web ./run -detach"),
        ("node meta read -node-id 1a2b", "node meta read 1a2b"),
        ("operator root keyring rotate -full", "operator keyring rotate --full"),
        ("operator raft list-peers", "operator members"),
        ("job run -help", "job run --help"),
        ("status -json", "job status --json"),
        ("status 1a2b", "status 1a2b"),
        ("job init", "job init --hcl"),
        ("action -job web -task main clear-cache", "job action -t web --task main clear-cache"),
        ("-version", "version"),
        ("-help", "--help"),
        ("", "--help"),
        ("job explain web", "job explain web"),
        ("job status -- -web", "job status -- -web"),
    ],
)
def test_arguments_of_nomad_become_those_of_wharf(nomad: str, wharf: str) -> None:
    assert translate_arguments(nomad.split()) == wharf.split()


@pytest.mark.parametrize(
    ("nomad", "text"),
    [
        ("alloc logs -job web", "nomad alloc logs: -job: use `wharf job logs JOB`"),
        ("alloc exec -job web sh", "nomad alloc exec: -job: `wharf job allocs JOB` lists the allocations"),
        ("alloc status -stats 1a2b", "nomad alloc status: -stats: `wharf alloc stats ALLOC` shows"),
        ("acl policy apply -namespace a -job b c d", "nomad acl policy apply: -namespace: Wharf's command"),
        ("agent -dev", "nomad agent: agents of Wharf have other settings: use `wharf agent --config FILE`"),
        ("operator snapshot restore x", "nomad operator snapshot restore: Wharf cannot read snapshots of Nomad"),
        ("job stop -purge=maybe web", "nomad job stop: -purge: expected true or false, got 'maybe'"),
    ],
)
def test_what_would_act_differently_is_refused_with_what_to_do(nomad: str, text: str) -> None:
    with pytest.raises(CliError, match=re.escape(text)):
        translate_arguments(nomad.split())


def test_a_session_with_commands_of_nomad_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write_file(tmp_path, WEB)
    with open_terminal(capsys, nodes=2) as terminal:
        submitted = terminal.run("job", "run", "-detach", file, program="nomad")
        terminal.wait(5)
        listed = terminal.run("status", "-json", program="nomad")
        jobs = terminal.run("job", "status", "-t", "{{range .}}{{.ID}}{{end}}", program="nomad")
        stopped = terminal.run("stop", "-detach", "-yes", "web", program="nomad")
        unknown = terminal.run("job", "run", "-detached", file, program="nomad")

    assert submitted.out.startswith("submitted job web (index ")
    assert (listed.code, json.loads(listed.out) != [], jobs.out.strip()) == (0, True, "web")
    assert stopped.out.startswith("stopped job web")
    assert unknown.err == ("wharf: unknown option -detached; did you mean `--detach`?\n")


def test_called_as_nomad_the_variables_of_nomad_come_first(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOMAD_ADDR", "http://127.0.0.1:1001")
    monkeypatch.setenv("WHARF_ADDR", "http://127.0.0.1:1002")
    terminal.run("job", "status", program="nomad")
    terminal.run("job", "status")

    assert [settings.addresses for settings in terminal.used_settings] == [
        ("http://127.0.0.1:1001",),
        ("http://127.0.0.1:1002",),
    ]


@pytest.mark.parametrize(("program", "prefix"), [("nomad", "NOMAD_"), ("wharf", "WHARF_")])
def test_texts_name_the_variables_and_the_program_that_the_user_called(
    program: str, prefix: str, terminal: Terminal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_without_server(*words: str) -> str:
        with pytest.raises(SystemExit):
            main(words, program=program)
        return capsys.readouterr().err

    unreachable = run_without_server("job", "status", "-address", "http://127.0.0.1:1")
    unsendable = run_without_server("job", "status", "-token", "a\nb")
    plan = terminal.run("job", "plan", write_file(tmp_path, WEB), program=program).out
    usage = terminal.run("job", "status", "--help", program=program).out

    assert unreachable.endswith(f"--address or {prefix}ADDR selects another\n")
    assert f"with --token or {prefix}TOKEN" in unsendable
    assert f"\n  {program} job run --check-index 0 " in plan
    assert f"[{prefix}TOKEN]" in usage


def test_the_link_runs_the_program_with_the_commands_of_nomad(tmp_path: Path) -> None:
    folder = make_program(tmp_path)
    made = install(folder, tmp_path / "bin")
    found = subprocess.run(
        [str(tmp_path / "bin/nomad"), "agent", "-dev"], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip

    assert made.stdout == f"{tmp_path}/bin/nomad runs {folder}/wharf\n"
    assert found.stderr.startswith("wharf: nomad agent: agents of Wharf have other settings")


def make_program(tmp_path: Path) -> Path:
    """Write a program `wharf` as an installation does, and make the folder for the link. Return the program's folder."""
    folder = tmp_path / "installed"
    folder.mkdir()
    (tmp_path / "bin").mkdir()
    program = folder / "wharf"
    program.write_text(f"#!{sys.executable}\nfrom wharf.cli import main\nmain()\n")
    program.chmod(0o755)
    return folder


def install(folder: Path, target: Path, what: str = "install-nomad") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(folder / "wharf"), "compat", what, str(target)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/nowhere", "PYTHONPATH": ":".join(sys.path)},
    )


def test_a_link_of_wharf_is_made_again_and_a_note_says_that_path_lacks_the_folder(tmp_path: Path) -> None:
    folder = make_program(tmp_path)
    (tmp_path / "bin/nomad").symlink_to("/old/installation/wharf")

    made = install(folder, tmp_path / "bin")

    assert (made.returncode, (tmp_path / "bin/nomad").readlink()) == (0, folder / "wharf")
    assert made.stderr == f"note: {tmp_path}/bin is not in PATH: add it, or call {tmp_path}/bin/nomad\n"
    assert sorted(os.listdir(tmp_path / "bin")) == ["nomad"]


def test_links_of_slurm_run_the_commands_of_their_names(tmp_path: Path) -> None:
    folder = make_program(tmp_path)

    made = install(folder, tmp_path / "bin", "install-slurm")
    called = subprocess.run(
        [str(tmp_path / "bin/sbatch"), "--hold", "--wrap=true"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/nowhere", "PYTHONPATH": ":".join(sys.path)},
    )

    assert (made.returncode, sorted(os.listdir(tmp_path / "bin"))) == (
        0,
        ["sacct", "sbatch", "scancel", "seff", "squeue"],
    )
    assert called.returncode == 1
    assert "--hold: not supported" in called.stderr


def test_another_file_named_nomad_stays(tmp_path: Path) -> None:
    folder = make_program(tmp_path)
    (tmp_path / "bin/nomad").write_text("theirs")

    refused = install(folder, tmp_path / "bin")

    assert refused.stderr == (
        f"wharf: {tmp_path}/bin/nomad exists and is not a link to wharf: move it away, or name another folder; nothing was "
        "changed\n"
    )
    assert (refused.returncode, (tmp_path / "bin/nomad").read_text()) == (1, "theirs")


def test_a_folder_that_does_not_exist_or_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = make_program(tmp_path)

    missing = install(folder, tmp_path / "missing")
    unwritable = install(folder, Path("/proc"))

    assert missing.stderr == (
        f"wharf: {tmp_path}/missing is not a folder: create it, or name a folder that is in PATH\n"
    )
    assert unwritable.stderr.startswith("wharf: cannot make /proc/nomad: ")


def test_job_run_of_nomad_waits_for_a_service_and_not_for_the_end_of_a_batch_job(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    service = write_file(tmp_path, WEB)
    batch = write_file(tmp_path, WEB.replace("ID: web", "ID: sums\nType: batch").replace(UPDATE, ""), "batch.yaml")
    with open_terminal(capsys, nodes=2) as terminal:
        followed = terminal.run("job", "run", service, program="nomad")
        not_followed = terminal.run("job", "run", batch, program="nomad")

    assert (followed.code, followed.lines[-1]) == (0, "✓ web: deployment succeeded")
    assert re.fullmatch(r"evaluation \w+ is complete", not_followed.lines[-1])
