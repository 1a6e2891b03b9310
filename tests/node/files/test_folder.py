"""Read access to the folder of an allocation: lists, content, and refusal of everything outside and of secrets."""

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason
from wharf.contract.wire.allocations.messages import AllocFileInfo
from wharf.node.files import ReadOnlyFolder
from wharf.node.files.folder import MAX_LISTED_ENTRIES, detect_content_type, format_mode


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "allocations" / "a1"
    for path in ("alloc/logs", "web/local", "web/secrets", "web/private", "db/local"):
        (root / path).mkdir(parents=True)
    (root / "web/local/page.html").write_text("<html>hello</html>")
    (root / "web/secrets/token").write_text("secret")
    (tmp_path / "outside").write_text("not yours")
    return root


@pytest.fixture
def folder(root: Path) -> ReadOnlyFolder:
    return ReadOnlyFolder(root)


def read(folder: ReadOnlyFolder, path: str) -> bytes:
    with os.fdopen(folder.open_file(path), "rb") as file:
        return file.read()


def list_entries(folder: ReadOnlyFolder, path: str) -> list[AllocFileInfo]:
    return [entry for entries in folder.iter_entries(path) for entry in entries]


def get_refusal(action: Callable[[], object]) -> tuple[RefusalCode, str]:
    with pytest.raises(Refusal) as error:
        action()
    return error.value.code, error.value.text


def test_a_folder_is_listed_by_name_with_hidden_files(root: Path, folder: ReadOnlyFolder) -> None:
    (root / "web/local/.hidden").touch()

    assert [".hidden", "page.html"] == [entry.name for entry in list_entries(folder, "web/local")]
    assert ["alloc", "db", "web"] == [entry.name for entry in list_entries(folder, "/")]
    assert ["local", "private", "secrets"] == [entry.name for entry in list_entries(folder, "/web/./local/..")]


def test_a_file_is_listed_with_size_mode_time_and_content_type(root: Path, folder: ReadOnlyFolder) -> None:
    page = root / "web/local/page.html"
    page.chmod(0o640)
    os.utime(page, ns=(0, 1_500_000_000_120_000_000))

    info = folder.read_info("web/local/page.html")

    assert ("page.html", False, 18, "-rw-r-----") == (info.name, info.is_dir, info.size, info.file_mode)
    assert ("2017-07-14T02:40:00.12Z", "text/plain; charset=utf-8") == (info.mod_time, info.content_type)


def test_a_folder_is_reported_as_a_folder(folder: ReadOnlyFolder) -> None:
    assert (True, "application/octet-stream") == ((info := folder.read_info("web")).is_dir, info.content_type)
    assert folder.read_info("/").is_dir
    assert (RefusalCode.INVALID, 'file "web" is a directory') == get_refusal(lambda: folder.open_file("web"))
    assert (RefusalCode.INVALID, 'file "/" is a directory') == get_refusal(lambda: folder.open_file("/"))
    assert (RefusalCode.INVALID, 'file "web/local/page.html" is not a directory') == get_refusal(
        lambda: list_entries(folder, "web/local/page.html")
    )


def test_a_link_within_the_folder_is_followed(root: Path, folder: ReadOnlyFolder) -> None:
    (root / "web/local/now").symlink_to("../../web/local/page.html")
    (root / "db/local/web").symlink_to("../../web/local")

    assert b"<html>hello</html>" == read(folder, "web/local/now") == read(folder, "db/local/web/page.html")
    assert "page.html" == folder.read_info("web/local/now").name


@pytest.mark.parametrize("path", ["../../outside", "web/../../../outside", "..", "web/local/../../.."])
def test_a_path_outside_of_the_folder_is_refused(folder: ReadOnlyFolder, path: str) -> None:
    for action in (folder.open_file, folder.read_info, partial(list_entries, folder)):
        assert (RefusalCode.INVALID, "Path escapes the alloc directory") == get_refusal(partial(action, path))


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../../outside", "/", "../../..", "loop"])
def test_a_link_to_a_target_outside_of_the_folder_is_refused(root: Path, folder: ReadOnlyFolder, target: str) -> None:
    (root / "web/local/loop").symlink_to("loop" if target == "loop" else "x")
    (root / "web/local/link").symlink_to(target)

    assert (RefusalCode.INVALID, "Path escapes the alloc directory") == get_refusal(
        lambda: folder.open_file("web/local/link")
    )
    assert "Lrwxrwxrwx" == next(entry.file_mode for entry in list_entries(folder, "web/local") if entry.name == "link")


def test_secrets_are_listed_and_never_read_also_through_a_link(root: Path, folder: ReadOnlyFolder) -> None:
    (root / "web/local/peek").symlink_to("../secrets/token")
    (root / "web/local/all").symlink_to("../secrets")

    assert ["token"] == [entry.name for entry in list_entries(folder, "web/secrets")]
    assert 6 == folder.read_info("web/secrets/token").size
    for path in ("web/secrets/token", "web/local/peek", "web/local/all/token", "db/../web/secrets/token"):
        message = f"Reading secret file prohibited: {path}"
        assert (RefusalCode.FORBIDDEN, message) == get_refusal(partial(folder.open_file, path))


@pytest.mark.parametrize("path", ["none", "web/none/x", "web/local/page.html/x", "x" * 300])
def test_a_missing_file_is_refused_as_not_found(folder: ReadOnlyFolder, path: str) -> None:
    assert (RefusalCode.NOT_FOUND, f'file "{path}" does not exist') == get_refusal(lambda: folder.open_file(path))


def test_a_file_must_be_named(folder: ReadOnlyFolder) -> None:
    assert (RefusalCode.INVALID, "must provide a file name") == get_refusal(lambda: folder.read_info(""))
    assert (RefusalCode.INVALID, "must provide a file name") == get_refusal(lambda: folder.open_file(""))
    assert (RefusalCode.INVALID, "a path must not contain a zero byte") == get_refusal(lambda: folder.open_file("a\0b"))


def test_reading_a_pipe_does_not_block(root: Path, folder: ReadOnlyFolder) -> None:
    os.mkfifo(root / "web/local/pipe")

    assert (RefusalCode.INVALID, 'file "web/local/pipe" is not a regular file') == get_refusal(
        lambda: folder.open_file("web/local/pipe")
    )
    assert "prw-r--r--" == folder.read_info("web/local/pipe").file_mode


def test_files_of_a_garbage_collected_allocation_are_refused_as_gone(tmp_path: Path) -> None:
    expected = (RefusalCode.NOT_FOUND, "the allocation's files are gone from its node")

    assert expected == get_refusal(lambda: list_entries(ReadOnlyFolder(tmp_path / "gone"), "/"))


def test_no_descriptor_stays_open(root: Path, folder: ReadOnlyFolder) -> None:
    (root / "web/local/link").symlink_to("/")
    open_descriptors = len(os.listdir("/proc/self/fd"))

    for path in ("web/local/page.html", "web/local/link", "none/x", "web/secrets/token", "web/local/..", ".."):
        for action in (folder.read_info, partial(list_entries, folder), folder.open_file):
            try:
                result = action(path)
            except Refusal:
                continue
            if isinstance(result, int):
                os.close(result)

    assert open_descriptors == len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        (0o100644, "-rw-r--r--"),
        (0o040777, "drwxrwxrwx"),
        (0o041777, "dtrwxrwxrwx"),
        (0o010600, "prw-------"),
        (0o140666, "Srw-rw-rw-"),
        (0o104755, "urwxr-xr-x"),
        (0o020600, "Dcrw-------"),
    ],
)
def test_modes_are_formatted_with_the_file_type_in_front(mode: int, text: str) -> None:
    assert text == format_mode(mode)


def test_a_socket_is_listed(root: Path, folder: ReadOnlyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root / "web/local")  # The path of a socket must be short.
    with socket.socket(socket.AF_UNIX) as channel:
        channel.bind("s")

        assert "S" == folder.read_info("web/local/s").file_mode[0]


@pytest.mark.parametrize(
    ("sample", "name", "content_type"),
    [
        (b"<html>", "x.html", "text/plain; charset=utf-8"),
        (b'{"a":1}', "x.json", "application/json"),
        (b"\x89PNG\r\n\x1a\n", "x", "image/png"),
        (b"a\0b", "x", "application/octet-stream"),
        ("é".encode() * 256 + b"\xc3", "x", "text/plain; charset=utf-8"),
        (b"\xff" * 100, "x", "application/octet-stream"),
        (b"", "x", "text/plain; charset=utf-8"),
    ],
)
def test_the_content_type_is_detected_from_the_beginning_of_a_file(sample: bytes, name: str, content_type: str) -> None:
    assert content_type == detect_content_type(sample, name)


def test_the_refusal_of_a_secret_file_has_a_reason(folder: ReadOnlyFolder) -> None:
    with pytest.raises(Refusal) as caught:
        folder.open_file("web/secrets/token")

    assert caught.value.reason is RefusalReason.SECRET_FILE


def test_a_folder_with_too_many_entries_is_refused(root: Path, folder: ReadOnlyFolder) -> None:
    (root / "full").mkdir()
    (root / "full/0").touch()
    for number in range(1, MAX_LISTED_ENTRIES + 1):
        os.link(root / "full/0", root / f"full/{number}")

    with pytest.raises(Refusal, match='folder "full" has more than 50000 entries'):
        list_entries(folder, "full")


def test_a_path_through_too_many_folders_is_refused(root: Path, folder: ReadOnlyFolder) -> None:
    (root / "inner").mkdir()

    with pytest.raises(Refusal, match="more than 200 folders and links"):
        folder.read_info("inner/../" * 101)


def test_a_name_that_is_no_text_is_listed(root: Path, folder: ReadOnlyFolder) -> None:
    os.close(os.open(os.fsencode(root) + b"/db/local/\xff", os.O_CREAT))

    assert ["\N{REPLACEMENT CHARACTER}"] == [entry.name for entry in list_entries(folder, "db/local")]
