"""Reading the audit log backwards: searches, pages and rotated files."""

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wharf.agent.logs import audit_reader
from wharf.agent.logs.audit import AuditLog
from wharf.agent.logs.audit_reader import iterate_lines_backwards, read_audit_log
from wharf.cluster.api.audit import AuditRecord
from wharf.cluster.server.agent_interface import AuditQuery
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.times import SECOND
from wharf.sinks.rotation import Rotation, list_rotated_files

NOON_NS = 1_767_268_800 * SECOND


def build_record(number: int, **fields: object) -> AuditRecord:
    values = {
        "at_ns": NOON_NS + number * SECOND,
        "request_id": f"r-{number}",
        "endpoint": "job.register",
        "method": "PUT",
        "path": "/v1/jobs",
        "token_name": "ci",
        "source": "10.0.0.9",
        "status": 200,
        **fields,
    }
    return AuditRecord(**values)  # type: ignore[arg-type]


def write_log(folder: Path, *records: AuditRecord, rotate_bytes: int = 0) -> Path:
    """Write records into the audit log of a folder. Return its path."""
    path = folder / "audit.log"
    audit = AuditLog(path, Rotation(bytes=rotate_bytes))
    for record in records:
        audit.record(record)
    audit.close()
    return path


def list_requests(path: Path, **query: object) -> list[str]:
    return [entry.request_id for entry in read_audit_log(path, AuditQuery(**{"limit": 100, **query})).entries]  # type: ignore[arg-type]


def read_all_pages(path: Path, limit: int) -> list[str]:
    """Return the requests of all pages of this size."""
    found, token = [], ""
    while True:
        page = read_audit_log(path, AuditQuery(limit, next_token=token))
        found += [entry.request_id for entry in page.entries]
        token = page.next_token
        if not token:
            return found


def test_the_newest_entry_comes_first_with_all_that_the_log_has(tmp_path: Path) -> None:
    command = ("sh", "-c", "ls")
    path = write_log(
        tmp_path,
        build_record(1),
        build_record(2, endpoint="client.exec", command=command, exit_code=3, allocation_id="a1", duration_ms=1.5),
    )

    page = read_audit_log(path, AuditQuery(10))

    assert [(entry.time, entry.request_id) for entry in page.entries] == [
        (NOON_NS + 2 * SECOND, "r-2"),
        (NOON_NS + SECOND, "r-1"),
    ]
    newest = page.entries[0]
    assert (newest.command, newest.exit_code, newest.allocation_id, newest.duration_ms) == (command, 3, "a1", 1.5)
    assert (page.next_token, page.is_incomplete) == ("", False)


def test_pages_of_any_size_have_each_entry_of_all_rotated_files_once(tmp_path: Path) -> None:
    path = write_log(tmp_path, *map(build_record, range(30)), rotate_bytes=1_000)
    assert len(list_rotated_files(path)) > 3

    expected = [f"r-{number}" for number in reversed(range(30))]
    assert {limit: read_all_pages(path, limit) for limit in (1, 3, 7, 100)} == dict.fromkeys((1, 3, 7, 100), expected)


def test_a_page_continues_where_it_was_after_new_entries_and_a_rotation(tmp_path: Path) -> None:
    path = write_log(tmp_path, *map(build_record, range(4)))
    first = read_audit_log(path, AuditQuery(2))
    os.rename(path, tmp_path / "audit-20260101T130000.log")
    write_log(tmp_path, build_record(9))

    second = read_audit_log(path, AuditQuery(2, next_token=first.next_token))

    assert [entry.request_id for entry in second.entries] == ["r-1", "r-0"]
    assert second.next_token == ""


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("", ["r-3", "r-2", "r-1"]),
        ("CI", ["r-2", "r-1"]),
        ("ci job.stop", ["r-2"]),
        ("größe", ["r-3"]),
        ("10.0.0.9 409", ["r-2"]),
        ('"quoted"', ["r-3"]),
        ("nothing", []),
        ("status", []),
    ],
)
def test_a_search_finds_entries_that_have_all_words_in_any_field(tmp_path: Path, search: str, found: list[str]) -> None:
    path = write_log(
        tmp_path,
        build_record(1),
        build_record(2, endpoint="job.stop", status=409),
        build_record(3, token_name="Größe", error='the "quoted" text', status=400),
    )

    assert list_requests(path, search=search) == found


def test_entries_that_were_refused_or_failed_can_be_selected(tmp_path: Path) -> None:
    path = write_log(tmp_path, build_record(1), build_record(2, status=403), build_record(3, status=500))

    assert list_requests(path, is_failed=True) == ["r-3", "r-2"]


def test_a_search_stops_after_a_limited_part_of_the_log_and_the_next_page_continues_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_log(tmp_path, build_record(0, token_name="ann"), *map(build_record, range(1, 30)))
    monkeypatch.setattr(audit_reader, "MAX_SEARCHED_BYTES", 1_000)

    first = read_audit_log(path, AuditQuery(5, "ann"))
    found, token = [], first.next_token
    while token:
        page = read_audit_log(path, AuditQuery(5, "ann", next_token=token))
        found += [entry.request_id for entry in page.entries]
        token = page.next_token

    assert (first.entries, first.is_incomplete) == ([], True)
    assert found == ["r-0"]


def test_lines_that_are_no_entries_are_left_out(tmp_path: Path) -> None:
    path = write_log(tmp_path, build_record(1))
    with path.open("ab") as file:
        file.write(
            b'not json\n{"time":"yesterday"}\n\xff\xfe\n{"time":"2026-01-01T12:00:05.000Z","request_id":"new","color":1}\n'
        )
        file.write(b'{"time":"2026-01-01T12:00:06.000Z","request_id":"half')

    assert list_requests(path) == ["new", "r-1"]


def test_a_file_without_line_ends_ends_the_search_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b"x" * 5_000)
    monkeypatch.setattr(audit_reader, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(audit_reader, "CHUNK_BYTES", 100)
    monkeypatch.setattr(audit_reader, "MAX_SEARCHED_BYTES", 1_000)

    page = read_audit_log(path, AuditQuery(5))

    assert (page.entries, page.is_incomplete) == ([], True)


def test_a_log_that_does_not_exist_has_no_entries(tmp_path: Path) -> None:
    assert read_audit_log(tmp_path / "audit.log", AuditQuery(5)).entries == []


@pytest.mark.parametrize("token", ["x", "1", "-1-5", "99999999999999999999999-1", "1-2-3", "0-5"])
def test_a_token_that_names_no_part_of_the_log_is_refused(tmp_path: Path, token: str) -> None:
    path = write_log(tmp_path, build_record(1))

    with pytest.raises(Refusal, match="begin again without it"):
        read_audit_log(path, AuditQuery(5, next_token=token))


def test_a_link_in_place_of_the_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b'{"time":"2026-01-01T12:00:05.000Z","request_id":"secret"}\n')
    (tmp_path / "audit.log").symlink_to(tmp_path / "other")

    with pytest.raises(OSError, match="symbolic"):
        read_audit_log(tmp_path / "audit.log", AuditQuery(5))


@given(
    lines=st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=20),
    has_end=st.booleans(),
    chunk=st.integers(1, 40),
)
def test_lines_read_backwards_are_all_lines_with_their_offsets(lines: list[bytes], has_end: bool, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit_reader, "CHUNK_BYTES", chunk)
        content = b"\n".join(lines) + (b"\n" if has_end and lines else b"")
        found = list(iterate_lines_backwards(io.BytesIO(content), len(content)))

    expected = content.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert [line for _, line in reversed(found)] == expected
    assert all(content[offset : offset + len(line)] == line for offset, line in found)
