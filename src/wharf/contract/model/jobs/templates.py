"""Templates that are rendered into a task's folder, and artifacts that are downloaded into it."""

from enum import StrEnum

from wharf.contract.model.record import Record
from wharf.contract.model.times import SECOND


class ChangeMode(StrEnum):
    """What happens to a task when the data of a template, a Vault token or an identity has changed."""

    RESTART = "restart"
    NOOP = "noop"
    SIGNAL = "signal"
    SCRIPT = "script"


class ChangeScript(Record):
    """A command run inside the task when a template has changed."""

    command: str = ""
    args: tuple[str, ...] | None = None
    timeout: int = 5 * SECOND
    fail_on_error: bool = False
    run_on_first_render: bool = False


class TemplateWait(Record):
    """How long a template waits for its data to become stable, in ns."""

    min: int | None = None
    max: int | None = None


class Template(Record):
    """A text with placeholders that is rendered to `dest_path`."""

    source_path: str = ""
    dest_path: str = ""
    embedded_tmpl: str = ""
    change_mode: str = ChangeMode.RESTART
    change_signal: str = ""
    change_script: ChangeScript | None = None
    once: bool = False
    splay: int = 5 * SECOND
    perms: str = "0644"
    uid: int | None = None
    gid: int | None = None
    left_delim: str = "{{"
    right_delim: str = "}}"
    envvars: bool = False
    err_missing_key: bool = False
    wait: TemplateWait | None = None
    vault_grace: int = 0


class GetterMode(StrEnum):
    """Whether an artifact is a file or a folder; `any` decides by its content."""

    ANY = "any"
    FILE = "file"
    DIR = "dir"


class Artifact(Record):
    """A file or folder that is downloaded into the task's folder before the task starts."""

    getter_source: str = ""
    getter_options: dict[str, str] | None = None
    getter_headers: dict[str, str] | None = None
    getter_mode: str = GetterMode.ANY
    getter_insecure: bool = False
    relative_dest: str = ""
    chown: bool = False
