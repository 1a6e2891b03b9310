"""Templates that are rendered into a task's folder, and artifacts that are downloaded into it."""

from enum import StrEnum

from wharf.contract.model.record import Record
from wharf.contract.model.times import SECOND


class ChangeMode(StrEnum):
    """What happens to a task when the data of its template, Vault token or identity has changed."""

    RESTART = "restart"
    NOOP = "noop"  # Nothing.
    SIGNAL = "signal"
    SCRIPT = "script"


class ChangeScript(Record):
    """A command that is run inside the task when the result of a template has changed."""

    command: str = ""
    args: tuple[str, ...] | None = None
    timeout: int = 5 * SECOND  # ns
    fail_on_error: bool = False  # Kill the task if the command fails.
    run_on_first_render: bool = False


class TemplateWait(Record):
    """How long a template waits for its data to stop changing before it is rendered, in ns."""

    min: int | None = None  # Without a change for this time: render.
    max: int | None = None  # At the latest after this time: render.


class Template(Record):
    """A text with placeholders that the node renders to a file of the task."""

    source_path: str = ""  # The file with the text.
    dest_path: str = ""  # The rendered file.
    embedded_tmpl: str = ""  # The text itself, instead of a file.
    change_mode: str = ChangeMode.RESTART  # A `ChangeMode`.
    change_signal: str = ""
    change_script: ChangeScript | None = None
    once: bool = False  # Do not render again.
    splay: int = 5 * SECOND  # ns; a random delay up to this time before a restart or signal.
    perms: str = "0644"  # Octal.
    uid: int | None = None
    gid: int | None = None
    left_delim: str = "{{"  # Begins a placeholder.
    right_delim: str = "}}"  # Ends a placeholder.
    envvars: bool = False  # The result holds environment variables.
    err_missing_key: bool = False  # Fail if a key is missing.
    wait: TemplateWait | None = None
    vault_grace: int = 0  # Deprecated, without effect.


class GetterMode(StrEnum):
    """Whether an artifact is downloaded as a file or unpacked as a folder; `ANY` decides by its content."""

    ANY = "any"
    FILE = "file"
    DIR = "dir"


class Artifact(Record):
    """A file or folder that is downloaded into the task's folder before the task starts."""

    getter_source: str = ""  # The URL.
    getter_options: dict[str, str] | None = None  # Such as `checksum`.
    getter_headers: dict[str, str] | None = None  # HTTP headers of the download.
    getter_mode: str = GetterMode.ANY  # A `GetterMode`.
    getter_insecure: bool = False  # Accept any TLS certificate.
    relative_dest: str = ""  # The destination below the task's folder.
    chown: bool = False  # Give the files to the task's user.
