"""`wharf job fetch` writes nothing outside its folder, and continues downloads that break off.

A server of the test sends what a real one never sends, or sends only because a task has chosen hostile names.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S
from tests.http_servers import QuietHandler, serving
from wharf.contract.wire.errors import DETAIL_HEADER, REASON_HEADER, encode_detail

CONTENT = bytes(range(256)) * 40
TIME = "2026-11-29T10:00:00Z"


class StandIn:
    """The files of one allocation by their paths, and how the server sends them."""

    def __init__(self) -> None:
        self.address = ""
        self.group = "train"
        self.count = 1
        self.has_failed_attempt = False
        """The allocations replaced earlier ones, which failed."""
        self.missing: tuple[str, str] | None = None
        """The text and the reason of the refusal of the requested file; `None`: it exists."""
        self.denial = ""
        """The reason of the denial of the requested file; empty: it may be read."""
        self.names: list[str] = []
        """The names of the files in the folder `out`."""
        self.cut_after: list[int] = []
        """The numbers of bytes after which the next replies break off."""
        self.offsets: list[int] = []
        """The offsets of the requests for content."""


class _MissingError(Exception):
    """The requested file does not exist: text and reason of the refusal."""


def build_handler(stand_in: StandIn) -> type[QuietHandler]:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            if url.path.startswith("/v1/client/fs/readat/"):
                self.send_content(int(query["offset"]))
                return
            try:
                body = json.dumps(self.find_document(url.path, query)).encode()
            except _MissingError as missing:
                text, reason = missing.args
                self.send_response(404)
                self.send_header(REASON_HEADER, reason)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())
            except PermissionError:
                self.reply(403, b"Permission denied", (DETAIL_HEADER, encode_detail(stand_in.denial)))
            else:
                self.reply(200, body)

        def find_document(self, path: str, query: dict[str, str]) -> Any:
            if path == "/v1/jobs":
                return [{"ID": "job", "Name": "job", "Namespace": "default", "Type": "batch", "Status": "dead"}]
            if path == "/v1/job/job/allocations":
                newest = [build_allocation(stand_in.group, index) for index in range(stand_in.count)]
                if not stand_in.has_failed_attempt:
                    return newest
                replaced = {"ID": f"1{newest[0]['ID'][1:]}", "ClientStatus": "failed", "CreateIndex": 0}
                return [newest[0] | {"CreateIndex": 10}, newest[0] | replaced, *newest[1:]]
            if path.startswith("/v1/client/fs/stat/"):
                if stand_in.denial:
                    raise PermissionError
                if stand_in.missing is not None:
                    text, reason = stand_in.missing
                    raise _MissingError(text, reason)
                return {"Name": "out", "IsDir": True, "FileMode": "drwxr-xr-x", "ModTime": TIME}
            assert path.startswith("/v1/client/fs/ls/"), path
            return [
                {
                    "Name": name,
                    "IsDir": name == "folder",
                    "Size": len(CONTENT),
                    "FileMode": "-rw-r--r--",
                    "ModTime": TIME,
                }
                for name in (stand_in.names if query["path"] in ("out", "main/local") else [])
            ]

        def send_content(self, offset: int) -> None:
            stand_in.offsets.append(offset)
            rest = CONTENT[offset:]
            self.send_response(200)
            self.send_header("content-length", str(len(rest)))
            self.end_headers()
            self.wfile.write(rest[: stand_in.cut_after.pop(0)] if stand_in.cut_after else rest)
            self.close_connection = True

    return Handler


def build_allocation(group: str, index: int) -> dict[str, Any]:
    return {
        "ID": f"0000000{index}-0000-4000-8000-000000000000",
        "Name": f"job.{group}[{index}]",
        "Namespace": "default",
        "NodeID": "n",
        "NodeName": "vm",
        "JobID": "job",
        "JobType": "batch",
        "TaskGroup": group,
        "DesiredStatus": "run",
        "ClientStatus": "complete",
        "TaskStates": {"main": {"State": "dead"}},
        "CreateIndex": index,
    }


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    stand_in = StandIn()
    server = ThreadingHTTPServer(("127.0.0.1", 0), build_handler(stand_in))
    with serving(server):
        stand_in.address = f"http://127.0.0.1:{server.server_port}"
        yield stand_in


def fetch(stand_in: StandIn, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "wharf", "job", "fetch", "job", "out", "--to", str(folder), *options],
        env={**os.environ, "WHARF_ADDR": stand_in.address, "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ANSWERED_WITHIN_S,
        check=False,
    )


def list_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


@pytest.mark.parametrize("name", ["../evil", "..", ".", "", "/etc/evil", "a/b", "a\0b"])
def test_a_hostile_name_of_a_file_is_reported_and_nothing_is_written_for_it(
    stand_in: StandIn, tmp_path: Path, name: str
) -> None:
    stand_in.names = ["before", name, "later"]

    process = fetch(stand_in, tmp_path / "to")

    assert (1, ["to/out/before", "to/out/later"]) == (process.returncode, list_files(tmp_path))
    assert f"job.train[0]: out has a file whose name is not possible here: {name!r}\n" in process.stderr


def test_the_files_of_several_allocations_are_brought_into_one_folder(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.names, stand_in.count = ["file"], 2

    process = fetch(stand_in, tmp_path / "to", "--flat")

    assert (0, ["to/train-0-out/file", "to/train-1-out/file"]) == (process.returncode, list_files(tmp_path))


def test_a_hostile_name_of_a_group_leads_to_no_other_folder(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.names, stand_in.group, stand_in.count = ["file"], "../../evil", 2

    fetch(stand_in, tmp_path / "a" / "to")

    ids = [build_allocation("", index)["ID"] for index in (0, 1)]
    assert [f"a/to/{id}/out/file" for id in ids] == list_files(tmp_path)


def test_a_link_in_the_local_folder_is_not_followed(stand_in: StandIn, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "out").symlink_to(outside)
    stand_in.names = ["file"]

    process = fetch(stand_in, tmp_path / "to")

    assert (1, []) == (process.returncode, list_files(outside))
    assert f"{tmp_path}/to/out exists and is not a folder: remove it, or choose another --to" in process.stderr


def test_a_download_that_breaks_off_continues_where_it_was(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.names, stand_in.cut_after = ["file"], [1_000, 2_000]

    process = fetch(stand_in, tmp_path)

    assert (0, CONTENT) == (process.returncode, (tmp_path / "out" / "file").read_bytes())
    assert [0, 1_000, 3_000] == stand_in.offsets


def test_a_download_that_breaks_off_again_and_again_leaves_no_incomplete_file(
    stand_in: StandIn, tmp_path: Path
) -> None:
    stand_in.names, stand_in.cut_after = ["file"], [1] * 100

    process = fetch(stand_in, tmp_path)

    assert (1, []) == (process.returncode, list_files(tmp_path))
    assert "no reply from" in process.stderr


@pytest.mark.parametrize("name", ["\x1b]0;owned\x07", "line\nbreak"])
def test_a_name_with_control_characters_is_the_name_of_a_local_file(
    stand_in: StandIn, tmp_path: Path, name: str
) -> None:
    stand_in.names = [name]

    assert 0 == fetch(stand_in, tmp_path).returncode
    assert CONTENT == (tmp_path / "out" / name).read_bytes()


@pytest.mark.parametrize(
    ("missing", "names", "message"),
    [
        (
            ('file "out" does not exist', ""),
            ["out", "x"],
            'file "out" does not exist\nwharf: did you mean main/local/out?',
        ),
        (
            ('file "out" does not exist', ""),
            ["a.csv", "b.csv"],
            'file "out" does not exist\nwharf: job.train[0] has main/local/a.csv, main/local/b.csv',
        ),
        (("No path to node", "no-node-path"), [], "node vm is down or out of contact"),
    ],
)
def test_a_file_that_cannot_be_fetched_names_what_exists_or_what_to_do(
    stand_in: StandIn, tmp_path: Path, missing: tuple[str, str], names: list[str], message: str
) -> None:
    stand_in.missing, stand_in.names = missing, names

    process = fetch(stand_in, tmp_path / "to")

    assert process.returncode == 1
    assert message in process.stderr


def test_a_denial_names_what_the_token_lacks(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.denial = 'token "ci" lacks the capability read-fs in namespace "default" or any other'

    process = fetch(stand_in, tmp_path / "to")

    assert process.returncode == 1
    assert process.stderr == f"wharf: job.train[0]: Permission denied: {stand_in.denial}\n"


def test_files_of_failed_attempts_can_be_fetched_after_a_rerun(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.has_failed_attempt = True
    stand_in.names = ["result.csv"]

    result = fetch(stand_in, tmp_path, "--failed", "--json")

    assert [each["ID"][:8] for each in json.loads(result.stdout)] == ["10000000"], result
