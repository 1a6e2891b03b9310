"""Requests to a real node through a server: files, logs, signals, restarts, usage, metadata and commands."""

import asyncio
import json
import os
import select
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S, is_alive
from tests.node.nodes import NodeProcess, build_raw_job, run_node, run_server
from tests.waiting import wait_until
from wharf.contract.client import ClientSettings, CommandResult, open_command, run_command_blocking
from wharf.contract.client.errors import RequestRefused
from wharf.node.processes import list_pids

SCRIPT = """
trap 'echo reloaded' USR1
echo begun; echo trouble >&2
while true; do sleep 0.05; done
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("requests")
    with run_server(folder / "server") as server, run_node(server, folder / "node") as node:
        yield node


@pytest.fixture(scope="module")
def alloc(node: NodeProcess) -> str:
    """Return the id of a running allocation."""
    node.run(build_raw_job("main", SCRIPT, kind="service", Env={"COLOUR": "blue"}))
    wait_until(
        lambda: any(a["ClientStatus"] == "running" for a in node.allocations("main")), what="the allocation runs"
    )
    alloc = str(node.allocations("main")[0]["ID"])
    wait_until(lambda: b"begun" in read_logs(node, alloc), what="the task prints")
    return alloc


def send_request(node: NodeProcess, path: str, *, method: str = "GET", body: object = None) -> tuple[int, bytes]:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(f"{node.server.address}/v1/client/{path}", data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def read_logs(node: NodeProcess, alloc: str, query: str = "task=t&type=stdout&plain=true") -> bytes:
    return send_request(node, f"fs/logs/{alloc}?{query}")[1]


def list_events(node: NodeProcess, alloc: str) -> list[dict[str, Any]]:
    allocation: Any = node.server.get(f"/v1/allocation/{alloc}")
    return list(allocation["TaskStates"]["t"]["Events"])


def run_command(node: NodeProcess, alloc: str, *command: str, stdin: bytes = b"", task: str = "t") -> CommandResult:
    return run_command_blocking(alloc, task, command, stdin=stdin, settings=settings(node))


def settings(node: NodeProcess) -> ClientSettings:
    return ClientSettings(addresses=(node.server.address,))


def wharf(node: NodeProcess, *arguments: str, stdin: bytes | None = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "WHARF_ADDR": node.server.address, "NO_COLOR": "1"}
    command = [sys.executable, "-m", "wharf", *arguments]
    return subprocess.run(
        command, input=stdin, env=environment, capture_output=True, timeout=ANSWERED_WITHIN_S, check=False
    )


# -- files and logs


@pytest.mark.parametrize("offset", [-1, 2**62 + 1, 2**63 - 1])
@pytest.mark.parametrize(
    "path",
    [
        "fs/readat/{alloc}?path=alloc/logs/t.stdout.0&limit=1",
        "fs/stream/{alloc}?path=alloc/logs/t.stdout.0&follow=false",
        "fs/logs/{alloc}?task=t&type=stdout&follow=false",
        "fs/logs/{alloc}?task=t&type=stdout&follow=false&file=alloc/logs/t.stdout.0",
    ],
)
def test_an_offset_that_no_file_has_is_refused(node: NodeProcess, alloc: str, path: str, offset: int) -> None:
    status, text = send_request(node, f"{path.format(alloc=alloc)}&offset={offset}")
    reason = b"offset cannot be negative" if offset < 0 else f"offset {offset} is larger than any file".encode()
    assert (400, reason) == (status, text[: len(reason)])


@pytest.mark.parametrize(
    "path",
    [
        "fs/readat/{alloc}?path=alloc/logs/t.stdout.0&limit=9223372036854775807",
        "fs/stream/{alloc}?path=alloc/logs/t.stdout.0&follow=false",
        "fs/logs/{alloc}?task=t&type=stdout&follow=false&file=alloc/logs/t.stdout.0",
    ],
)
def test_nothing_is_read_beyond_the_end_of_a_file(node: NodeProcess, alloc: str, path: str) -> None:
    assert (200, b"") == send_request(node, f"{path.format(alloc=alloc)}&offset={2**62}")


def test_a_zero_byte_in_a_command_is_refused_with_a_reason(node: NodeProcess, alloc: str) -> None:
    with pytest.raises(RequestRefused, match="command contains a zero byte"):
        run_command(node, alloc, "echo", "a\0b")


def test_the_log_of_a_task_is_read_through_a_server(node: NodeProcess, alloc: str) -> None:
    assert b"begun" == read_logs(node, alloc).split(b"\n")[0]
    assert b"trouble\n" == read_logs(node, alloc, "task=t&type=stderr&plain=true")


def test_a_log_is_followed_as_it_grows(node: NodeProcess, alloc: str) -> None:
    path = f"/v1/client/fs/logs/{alloc}?task=t&type=stdout&follow=true&plain=true&origin=end"
    with urllib.request.urlopen(node.server.address + path, timeout=ANSWERED_WITHIN_S) as reply:
        assert 200 == send_request(node, f"allocation/{alloc}/signal", method="PUT", body={"Signal": "SIGUSR1"})[0]

        assert b"reloaded\n" == reply.readline()


def test_a_running_task_without_output_has_an_empty_log(node: NodeProcess) -> None:
    node.run(build_raw_job("quiet", "exec sleep 600", kind="service"))
    wait_until(
        lambda: any(a["ClientStatus"] == "running" for a in node.allocations("quiet")), what="the allocation runs"
    )
    quiet_id = str(node.allocations("quiet")[0]["ID"])

    assert (200, b"") == send_request(node, f"fs/logs/{quiet_id}?task=t&type=stderr")
    assert (200, b"") == send_request(node, f"fs/logs/{quiet_id}?task=t&type=stdout&plain=true")


def test_a_task_with_disabled_logs_is_shown_as_such(node: NodeProcess) -> None:
    node.run(build_raw_job("silent", "echo unheard", LogConfig={"Disabled": True, "MaxFiles": 1, "MaxFileSizeMB": 1}))
    wait_until(
        lambda: any(a["ClientStatus"] == "complete" for a in node.allocations("silent")),
        what="the allocation has ended",
    )
    ended = str(node.allocations("silent")[0]["ID"])

    text = b'task "t" has no logs: its job disables them by LogConfig.Disabled'
    assert (404, text) == send_request(node, f"fs/logs/{ended}?task=t&type=stdout")


def test_an_unknown_task_has_no_log(node: NodeProcess, alloc: str) -> None:
    assert (400, b'unknown task name "x"') == send_request(node, f"fs/logs/{alloc}?task=x&type=stdout")


def test_the_files_of_an_allocation_are_listed(node: NodeProcess, alloc: str) -> None:
    listed = json.loads(send_request(node, f"fs/ls/{alloc}?path=t")[1])

    assert ["local", "private", "secrets", "tmp"] == [entry["Name"] for entry in listed]


# -- signals and restarts


def test_a_signal_reaches_the_task_and_is_recorded(node: NodeProcess, alloc: str) -> None:
    before = read_logs(node, alloc).count(b"reloaded")

    assert (
        200
        == send_request(node, f"allocation/{alloc}/signal", method="PUT", body={"Task": "t", "Signal": "SIGUSR1"})[0]
    )

    wait_until(lambda: read_logs(node, alloc).count(b"reloaded") > before, what="the task has received the signal")
    signalled = next(event for event in list_events(node, alloc) if event["Type"] == "Signaling")
    assert ({"signal": "SIGUSR1"}, "Task being sent a signal") == (signalled["Details"], signalled["DisplayMessage"])


def test_an_unknown_signal_is_refused(node: NodeProcess, alloc: str) -> None:
    reply = send_request(node, f"allocation/{alloc}/signal", method="PUT", body={"Task": "t", "Signal": "SIGFOO"})

    assert (400, b'unknown signal "SIGFOO": use a name such as SIGHUP') == reply
    assert [] == [event for event in list_events(node, alloc) if "SIGFOO" in str(event)]


def test_a_task_is_restarted_on_its_node(node: NodeProcess, alloc: str) -> None:
    before = read_logs(node, alloc).count(b"begun")

    assert 200 == send_request(node, f"allocation/{alloc}/restart", method="PUT", body={"TaskName": "t"})[0]

    wait_until(lambda: read_logs(node, alloc).count(b"begun") > before, what="the task has started again")
    wait_until(lambda: [e["Type"] for e in list_events(node, alloc)][-1] == "Started", what="the start is reported")
    restarts = [event for event in list_events(node, alloc) if event["Type"] == "Restart Signaled"]
    assert "User requested task to restart" == restarts[-1]["DisplayMessage"]


def test_a_running_allocation_is_not_garbage_collected(node: NodeProcess, alloc: str) -> None:
    status, text = send_request(node, f"allocation/{alloc}/gc", method="PUT")

    assert (400, True) == (status, text.startswith(b"No such allocation on client"))


def test_the_files_of_an_ended_allocation_are_removed_on_request(node: NodeProcess) -> None:
    node.run(build_raw_job("ended", "echo done"))
    wait_until(
        lambda: any(a["ClientStatus"] == "complete" for a in node.allocations("ended")), what="the allocation has ended"
    )
    ended = str(node.allocations("ended")[0]["ID"])
    assert 200 == send_request(node, f"fs/ls/{ended}")[0]

    assert (200, b"") == send_request(node, f"allocation/{ended}/gc", method="PUT")

    assert 404 == send_request(node, f"fs/ls/{ended}")[0]


def test_the_end_of_a_log_is_read_when_the_files_are_gone(node: NodeProcess) -> None:
    node.run(build_raw_job("outlived", "seq 1 2000; echo why >&2; exit 3"))
    wait_until(
        lambda: any(a["ClientStatus"] == "failed" for a in node.allocations("outlived")),
        what="the allocation has failed",
    )
    ended = str(node.allocations("outlived")[0]["ID"])
    full_log = read_logs(node, ended)
    assert 200 == send_request(node, f"allocation/{ended}/gc", method="PUT")[0]

    log_tail = read_logs(node, ended)

    assert (True, True) == (full_log.endswith(log_tail), 1_500 < len(log_tail) <= 2_048)
    assert b"1999\n2000\n" == read_logs(node, ended, "task=t&type=stdout&plain=true&origin=end&offset=10")
    process = wharf(node, "alloc", "logs", "-stderr", ended)
    assert (b"why\n", True) == (
        process.stdout,
        b"the node of outlived.g[0] no longer has these files" in process.stderr,
    )
    assert b"the last lines kept by the servers" in wharf(node, "job", "logs", "outlived").stderr
    assert "log_tails" not in json.dumps(node.server.get(f"/v1/allocation/{ended}")).lower().replace(
        "logtails", "log_tails"
    )


# -- statistics and metadata


def test_the_resource_usage_of_a_task_is_measured(node: NodeProcess, alloc: str) -> None:
    statistics = json.loads(send_request(node, f"allocation/{alloc}/stats")[1])

    usage = statistics["Tasks"]["t"]["ResourceUsage"]
    assert ["RSS", "Swap"] == usage["MemoryStats"]["Measured"]
    assert ["System Mode", "User Mode", "Percent"] == usage["CpuStats"]["Measured"]
    assert usage["MemoryStats"]["RSS"] > 100_000
    assert [] == statistics["ResourceUsage"]["DeviceStats"]


def test_history_is_returned_only_on_request(node: NodeProcess, alloc: str) -> None:
    path, machine = f"allocation/{alloc}/stats", f"stats?node_id={node_id(node)}"
    now, past = json.loads(send_request(node, path)[1]), json.loads(send_request(node, f"{path}?history=5m")[1])

    assert (False, True, True) == ("History" in now, "History" in past, "History" in past["Tasks"]["t"])
    assert "History" in json.loads(send_request(node, f"{machine}&history=5m")[1])
    assert 400 == send_request(node, f"{machine}&history=often")[0]


def test_an_unknown_task_has_no_usage(node: NodeProcess, alloc: str) -> None:
    statistics = json.loads(send_request(node, f"allocation/{alloc}/stats?task=other")[1])

    assert ({}, 0, None) == (
        statistics["Tasks"],
        statistics["Timestamp"],
        statistics["ResourceUsage"]["CpuStats"]["Measured"],
    )


def test_the_machine_is_measured(node: NodeProcess) -> None:
    statistics = json.loads(send_request(node, f"stats?node_id={node_id(node)}")[1])

    assert os.cpu_count() == len(statistics["CPU"])
    assert 0 < statistics["Memory"]["Used"] < statistics["Memory"]["Total"]
    assert ("", True) == (statistics["AllocDirStats"]["Mountpoint"], statistics["AllocDirStats"]["Size"] > 0)


def test_metadata_can_be_changed_while_the_node_runs_and_servers_receive_it(node: NodeProcess) -> None:
    id = node_id(node)

    status, body = send_request(node, f"metadata?node_id={id}", method="POST", body={"Meta": {"rack": "r1"}})

    assert (200, {"rack": "r1"}) == (status, json.loads(body)["Dynamic"])
    wait_until(lambda: read_node(node, id)["Meta"] == {"rack": "r1"}, what="servers have the metadata")
    assert 200 == send_request(node, f"metadata?node_id={id}", method="POST", body={"Meta": {"rack": None}})[0]
    assert {} == json.loads(send_request(node, f"metadata?node_id={id}")[1])["Dynamic"]


def node_id(node: NodeProcess) -> str:
    nodes: Any = node.server.get("/v1/nodes")
    return str(nodes[0]["ID"])


def read_node(node: NodeProcess, id: str) -> dict[str, Any]:
    description: Any = node.server.get(f"/v1/node/{id}")
    return dict(description)


# -- commands


def test_a_command_runs_with_the_tasks_variables_in_its_folder(node: NodeProcess, alloc: str) -> None:
    ended = run_command(node, alloc, "/bin/sh", "-c", "echo $COLOUR $WHARF_TASK_NAME; pwd")

    assert (0, f"blue t\n{node.folder}/alloc/{alloc}/t\n") == (ended.exit_code, ended.stdout.decode())


def test_a_command_has_input_and_output_streams(node: NodeProcess, alloc: str) -> None:
    ended = run_command(node, alloc, "/bin/sh", "-c", "cat; echo wrong >&2; exit 5", stdin=b"heard\n")

    assert CommandResult(5, b"heard\n", b"wrong\n") == ended


def test_a_command_can_print_long_input_while_it_reads_it(node: NodeProcess, alloc: str) -> None:
    data = bytes(range(256)) * 48_000

    assert run_command(node, alloc, "cat", stdin=data).stdout == data


def test_death_by_a_signal_is_reported_as_128_plus_its_number(node: NodeProcess, alloc: str) -> None:
    assert 137 == run_command(node, alloc, "/bin/sh", "-c", "kill -9 $$").exit_code


def test_all_output_of_a_command_arrives(node: NodeProcess, alloc: str) -> None:
    ended = run_command(node, alloc, "seq", "1", "200000")

    assert "".join(f"{n}\n" for n in range(1, 200_001)).encode() == ended.stdout


def test_a_command_that_cannot_be_started_is_refused_with_the_reason(node: NodeProcess, alloc: str) -> None:
    with pytest.raises(RequestRefused, match="program nonesuch not found"):
        run_command(node, alloc, "nonesuch")


@pytest.mark.parametrize(
    ("command", "code"), [("nonesuch", 127), ("/none/such", 127), ("/etc/hostname", 126), ("/etc", 126)]
)
def test_wharf_exits_like_a_shell_if_a_command_cannot_be_started(
    node: NodeProcess, alloc: str, command: str, code: int
) -> None:
    assert wharf(node, "alloc", "exec", alloc, command).returncode == code


def test_a_long_reason_is_visibly_truncated_without_a_guess_beside_it(node: NodeProcess, alloc: str) -> None:
    ended = wharf(node, "alloc", "exec", alloc, "x" * 200)

    assert (1, f"wharf: program {'x' * 109}…\n") == (ended.returncode, ended.stderr.decode())


def test_a_command_in_an_unknown_task_is_refused(node: NodeProcess, alloc: str) -> None:
    with pytest.raises(RequestRefused, match='unknown task name "other"'):
        run_command(node, alloc, "true", task="other")


def test_a_command_in_an_ended_allocation_is_refused(node: NodeProcess) -> None:
    node.run(build_raw_job("over", "exit 0"))
    wait_until(
        lambda: any(a["ClientStatus"] == "complete" for a in node.allocations("over")), what="the allocation has ended"
    )
    ended_id = str(node.allocations("over")[0]["ID"])

    for _ in range(20):  # Right after its end, and when its assignment is deleted.
        with pytest.raises(RequestRefused, match='task "t" is not running'):
            run_command(node, ended_id, "true")


def test_with_a_terminal_all_output_is_one_stream_and_the_terminal_has_the_callers_size(
    node: NodeProcess, alloc: str
) -> None:
    async def run_session() -> tuple[bytes, set[str], int | None]:
        async with open_command(settings(node), alloc, "t", ["/bin/sh"], is_tty=True) as running:
            await running.resize(40, 101)
            await running.write(b"stty size; echo wrong >&2; exit 7\n")
            pieces = [piece async for piece in running.read_output()]
            return b"".join(piece.data for piece in pieces), {piece.stream for piece in pieces}, running.exit_code

    output, streams, code = asyncio.run(run_session())

    assert ({"stdout"}, 7) == (streams, code)
    assert b"40 101\r\nwrong\r\n" in output


def test_closing_the_input_of_a_terminal_hangs_up(node: NodeProcess, alloc: str) -> None:
    async def run_session() -> int | None:
        async with open_command(settings(node), alloc, "t", ["sleep", "60"], is_tty=True) as running:
            await running.close_input()
            async for _ in running.read_output():
                pass
            return running.exit_code

    assert 129 == asyncio.run(run_session())


def test_a_command_ends_with_its_caller_and_leaves_nothing(node: NodeProcess, alloc: str) -> None:
    arguments = [b"sleep", b"7654"]

    async def run_session() -> None:
        script = "setsid sleep 7654 & sleep 7654 & echo up; wait"
        async with open_command(settings(node), alloc, "t", ["/bin/sh", "-c", script]) as running:
            async for piece in running.read_output():
                assert b"up\n" == piece.data
                break

    asyncio.run(run_session())

    wait_until(lambda: not find_processes(arguments), what="no process of the command is left")


def find_processes(arguments: Sequence[bytes]) -> list[int]:
    """Return the ids of the running processes whose command line begins with these arguments."""
    pids = []
    for pid in list_pids():
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[: len(arguments)] == list(arguments) and is_alive(
                pid
            ):
                pids.append(pid)
        except OSError:
            continue
    return pids


# -- from the command line


def test_logs_are_written_out(node: NodeProcess, alloc: str) -> None:
    assert b"trouble\n" == wharf(node, "alloc", "logs", "-stderr", "-n", "1", alloc).stdout


def test_the_last_lines_are_whole_however_long_they_are(node: NodeProcess) -> None:
    node.run(build_raw_job("long", "printf 'first\\n%05000d\\n1%%\\r2%%\\r3%%\\n' 7"))
    wait_until(
        lambda: any(a["ClientStatus"] == "complete" for a in node.allocations("long")), what="the allocation has ended"
    )
    ended = str(node.allocations("long")[0]["ID"])
    last_lines = f"{7:05000d}\n1%\r2%\r3%\n"

    assert last_lines.encode() == wharf(node, "alloc", "logs", "-n", "2", ended).stdout
    assert 2 == wharf(node, "job", "logs", "long", "-n", "2").stdout.count(b"\n")


def test_following_a_log_continues_after_a_kill_of_the_node_agent(node: NodeProcess, tmp_path: Path) -> None:
    node.run(build_raw_job("counts", "i=0; while true; do i=$((i+1)); echo $i; sleep 0.1; done", kind="service"))
    wait_until(
        lambda: any(a["ClientStatus"] == "running" for a in node.allocations("counts")), what="the allocation runs"
    )
    alloc = str(node.allocations("counts")[0]["ID"])
    environment = {**os.environ, "WHARF_ADDR": node.server.address}
    commands = {tmp_path / "alloc": ("alloc", "logs", "-f", alloc), tmp_path / "job": ("job", "logs", "-f", "counts")}
    processes = []

    def read_last_number(path: Path) -> int:
        return max((int(line.split()[-1]) for line in path.read_text().split("\n")[:-1]), default=0)

    try:
        for path, arguments in commands.items():
            with path.open("wb") as out:
                command = [sys.executable, "-m", "wharf", *arguments]
                processes.append(subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, env=environment))
        wait_until(lambda: all(read_last_number(path) for path in commands), what="both commands print lines")
        node.kill_agent()
        node.wait_ready()
        printed = int(read_logs(node, alloc).split()[-1])
        wait_until(
            lambda: all(read_last_number(path) > printed for path in commands), what="both commands print newer lines"
        )
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_wharf_exits_with_the_exit_code_of_the_command(node: NodeProcess, alloc: str) -> None:
    ended = wharf(node, "alloc", "exec", alloc, "sh", "-c", "cat; exit 9", stdin=b"piped")

    assert (9, b"piped") == (ended.returncode, ended.stdout)


def test_with_a_terminal_keys_are_sent_to_the_command(node: NodeProcess, alloc: str) -> None:
    controller, terminal = os.openpty()
    environment = {**os.environ, "WHARF_ADDR": node.server.address}
    command = [sys.executable, "-m", "wharf", "alloc", "exec", "-it", alloc, "/bin/sh"]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    output = bytearray()

    def has_printed(text: bytes) -> bool:
        while select.select([controller], [], [], 0)[0]:  # Unread output would block the command.
            try:
                output.extend(os.read(controller, 4096))
            except OSError:  # All processes have closed the terminal.
                break
        return text in output

    def has_ended() -> bool:
        has_printed(b"")
        return process.poll() is not None

    try:
        # Printed by the command that is interrupted next: from then on it is the terminal's foreground process.
        os.write(controller, b"sh -c 'tty >/dev/null && echo is\"\"_ready; exec sleep 99'\n")
        wait_until(lambda: has_printed(b"is_ready"), what="the command has the terminal")
        os.write(controller, b"\x03exit 6\n")  # Ctrl-C is sent to the remote command; the local one keeps running.
        wait_until(has_ended, what="the shell has ended")

        assert 6 == process.returncode
    finally:
        process.kill()
        process.wait()
        os.close(controller)


def test_options_after_the_command_belong_to_the_command(node: NodeProcess, alloc: str) -> None:
    assert b"-json --task\n" == wharf(node, "alloc", "exec", alloc, "echo", "-json", "--task").stdout


def test_files_are_listed_and_written_out(node: NodeProcess, alloc: str) -> None:
    assert b"t.stderr.0" in wharf(node, "alloc", "fs", "ls", alloc, "alloc/logs").stdout
    assert wharf(node, "alloc", "fs", "cat", alloc, "alloc/logs/t.stdout.0").stdout.startswith(b"begun\n")
    assert b"drwxrwxrwx" in wharf(node, "alloc", "fs", "stat", alloc, "t").stdout


def test_a_file_is_printed_if_a_path_of_a_list_names_one(node: NodeProcess, alloc: str) -> None:
    printed = wharf(node, "alloc", "fs", alloc, "alloc/logs/t.stdout.0")
    refused = wharf(node, "alloc", "fs", "ls", "--json", alloc, "alloc/logs/t.stdout.0")

    assert printed.stdout.startswith(b"begun\n")
    assert (refused.returncode, b"`wharf alloc fs cat` prints a file" in refused.stderr) == (1, True)


def test_a_refused_secret_file_does_not_suggest_a_token(node: NodeProcess, alloc: str) -> None:
    errors = wharf(node, "alloc", "fs", "cat", alloc, "t/secrets/x").stderr

    assert b"wharf: Reading secret file prohibited: t/secrets/x\n" == errors


def test_the_logs_of_a_job_name_the_allocation_of_each_line(node: NodeProcess, alloc: str) -> None:
    output = wharf(node, "job", "logs", "main", "-n", "1", "--stderr").stdout

    assert f"{alloc[:8]} g[0] t! trouble\n" == output.decode()


def test_the_logs_of_a_job_can_be_filtered(node: NodeProcess, alloc: str) -> None:
    output = wharf(node, "job", "logs", "main", "--grep", "^tr").stdout.decode()

    assert {f"{alloc[:8]} g[0] t! trouble"} == set(output.splitlines())


def test_a_job_is_restarted_one_allocation_after_the_other(node: NodeProcess) -> None:
    node.run(build_raw_job("several", "while true; do sleep 0.1; done", kind="service", count=2))

    def is_running() -> bool:
        return ["running"] * 2 == [a["ClientStatus"] for a in node.allocations("several")]

    wait_until(is_running, what="both allocations run")

    ended = wharf(node, "job", "restart", "several")

    assert (0, b"restarted 2 allocations of job several") == (ended.returncode, ended.stdout.splitlines()[-1])
    assert [1, 1] == [a["TaskStates"]["t"]["Restarts"] for a in node.allocations("several")]
