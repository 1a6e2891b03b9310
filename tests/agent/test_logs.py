"""Log lines: format, levels, request ids, and redaction of secrets."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from wharf.agent.logs.setup import LogConfiguration, ProcessLogging
from wharf.config.settings import LogLevel
from wharf.sinks.rotation import Rotation
from wharf.world.request_id import RequestIdScope

log = logging.getLogger("wharf.cluster.api.test")


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def logs(stream: io.StringIO) -> Iterator[ProcessLogging]:
    level = logging.getLogger().level
    logs = ProcessLogging("api", stream=stream)
    yield logs
    logs.apply(LogConfiguration())
    logs.close()
    logging.getLogger().setLevel(level)


def documents(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_text_of_others_in_a_log_line_cannot_control_the_terminal(logs: ProcessLogging, stream: io.StringIO) -> None:
    logs.apply(LogConfiguration())

    log.warning("task failed reason=%s", "\x1b]0;title\x07\rover\u202e", extra={"job": "\x9b2J"})

    line = stream.getvalue().rstrip("\n")
    assert "reason=\\u001b]0;title\\u0007\\u000dover\\u202e" in line
    assert "job=\\u009b2J" in line
    assert line.isprintable()


def test_a_line_of_json_names_time_level_process_and_values(logs: ProcessLogging, stream: io.StringIO) -> None:
    logs.apply(LogConfiguration(json=True))

    log.warning("slow %s", "reply", extra={"duration_ms": 12.5, "path": "/v1/jobs"})

    (line,) = documents(stream)
    assert str(line.pop("time")).endswith("Z")
    assert line == {
        "level": "warn",
        "process": "api",
        "logger": "wharf.cluster.api.test",
        "message": "slow reply",
        "fields": {"duration_ms": 12.5, "path": "/v1/jobs"},
    }


def test_a_text_line_has_time_level_process_and_message(logs: ProcessLogging, stream: io.StringIO) -> None:
    logs.apply(LogConfiguration())

    log.info("listening", extra={"address": "127.0.0.1:4646", "why": "as told"})

    time, remainder = stream.getvalue().split(" ", 1)
    assert time.endswith("Z")
    assert remainder == 'info  api    listening  address=127.0.0.1:4646  why="as told"\n'


def test_on_a_terminal_lines_have_colours_and_no_date() -> None:
    stream = Terminal()
    logs = ProcessLogging("api", stream=stream)
    logs.apply(LogConfiguration())

    logging.getLogger("wharf.cluster.api.test").error("broken")
    logs.close()

    assert "\x1b[31;1merror\x1b[0m api    broken" in stream.getvalue()
    assert "T" not in stream.getvalue().split(" ")[0]


def test_an_error_has_its_traceback_in_the_same_entry(logs: ProcessLogging, stream: io.StringIO) -> None:
    logs.apply(LogConfiguration(json=True))
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        log.exception("failed")

    (line,) = documents(stream)
    assert str(line["error"]).endswith("RuntimeError: boom")


def test_a_request_id_is_on_every_line_of_its_request_and_on_no_other(
    logs: ProcessLogging, stream: io.StringIO
) -> None:
    logs.apply(LogConfiguration(json=True))

    with RequestIdScope("r-1"):
        log.info("inside")
    log.info("outside")

    assert [line.get("request_id") for line in documents(stream)] == ["r-1", None]


def test_a_part_can_log_more_than_the_rest(logs: ProcessLogging, stream: io.StringIO) -> None:
    logs.apply(LogConfiguration(json=True, level=LogLevel.WARN, levels={"engines.etcd": LogLevel.DEBUG}))

    logging.getLogger("wharf.cluster.engines.etcd.engine").debug("heard")
    logging.getLogger("wharf.cluster.engines").info("not heard")

    assert [line["message"] for line in documents(stream)] == ["heard"]


def test_levels_can_be_changed_and_restored_while_running(logs: ProcessLogging, stream: io.StringIO) -> None:
    for order in (
        LogConfiguration(json=True, level=LogLevel.DEBUG),
        LogConfiguration(json=True, levels={"api": LogLevel.ERROR}),
        LogConfiguration(json=True),
    ):
        logs.apply(order)
        log.debug("debug")
        log.info("info")

    assert [line["message"] for line in documents(stream)] == ["debug", "info", "info"]


def test_lines_are_also_written_to_the_file(logs: ProcessLogging, stream: io.StringIO, tmp_path: Path) -> None:
    logs.apply(LogConfiguration(json=True, file=str(tmp_path / "w.log"), rotation=Rotation(bytes=10**6)))

    log.info("both")

    assert (tmp_path / "w.log").read_text() == stream.getvalue() != ""


def test_the_newest_lines_are_retained_in_memory(logs: ProcessLogging) -> None:
    logs.apply(LogConfiguration(on_terminal=False))
    log.info("kept")

    assert json.loads(logs.get_retained_lines()[-1])["message"] == "kept"


@pytest.mark.parametrize("as_json", [True, False])
def test_no_secret_is_in_any_line(logs: ProcessLogging, stream: io.StringIO, tmp_path: Path, *, as_json: bool) -> None:
    secret = "b2d6f5a0-hidden"
    logs.apply(LogConfiguration(json=as_json, secrets=("p4ssw0rd-of-etcd",), file=str(tmp_path / "w.log")))

    log.info("header X-Cluster-Token: %s", secret)
    log.info("Authorization: Bearer %s", secret)
    log.info('{"SecretID": "%s"}', secret)
    log.info("got bearer %s from a caller", secret)
    log.info("password=%s", secret)
    log.info("etcd://root:%s@host", secret)
    log.info("dial failed for p4ssw0rd-of-etcd")
    log.info("-----BEGIN EC PRIVATE KEY-----\n%s\n-----END EC PRIVATE KEY-----", secret)
    log.info("fields", extra={"token": secret, "node_secret": secret, "headers": {"x-cluster-node-secret": secret}})
    try:
        raise ValueError(f"token={secret}")
    except ValueError:
        log.exception("failed")

    all_output = stream.getvalue() + (tmp_path / "w.log").read_text() + "".join(logs.get_retained_lines())
    assert all_output.count("fields") >= 2
    assert secret not in all_output
    assert "p4ssw0rd-of-etcd" not in all_output


@pytest.mark.parametrize(
    "text",
    [
        "token accessor 5f3c was used",
        "tokens=12",
        "listening on http://127.0.0.1:4646",
        "the password is wrong",
        "accessor_id=5f3c",
    ],
)
def test_texts_that_are_not_secrets_are_not_redacted(logs: ProcessLogging, stream: io.StringIO, text: str) -> None:
    logs.apply(LogConfiguration(json=True))

    log.info(text)

    assert documents(stream)[0]["message"] == text


class UnprintableValue:
    """A value that cannot be converted to text."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_a_line_that_cannot_be_written_does_not_stop_the_process(logs: ProcessLogging) -> None:
    logs.apply(LogConfiguration())

    log.info("lost", extra={"value": UnprintableValue()})
    log.info("next")

    assert [json.loads(line)["message"] for line in logs.get_retained_lines()] == ["next"]
