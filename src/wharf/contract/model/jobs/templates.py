"""Templates that are rendered into a task's folder, and artifacts that are downloaded into it."""

from enum import StrEnum

from wharf.contract.model.record import Record
from wharf.contract.model.times import SECOND, DurationNs


class ChangeMode(StrEnum):
    """What happens to a task when the data of its template, Vault token or identity has changed."""

    RESTART = "restart"
    NOOP = "noop"  # Nothing.
    SIGNAL = "signal"
    SCRIPT = "script"


class ChangeScript(Record):
    """A command that is run inside the task when the result of a template has changed."""

    command: str = ""
    """The program that is run inside the task.

    Default: none; required
    Example: /local/reload.sh
    """
    args: tuple[str, ...] | None = None
    """The arguments of the program.

    Default: none
    Example: ["--quick"]
    """
    timeout: DurationNs = 5 * SECOND
    """How long the program may take.

    After this time it is killed and has failed.

    Example: 20s
    """
    fail_on_error: bool = False
    """Whether the task is killed if the program fails."""
    run_on_first_render: bool = False
    """Whether the program also runs after the template was rendered for the first time."""


class TemplateWait(Record):
    """How long a template waits for its data to stop changing before it is rendered."""

    min: DurationNs | None = None
    """How long the data of the template must not change before it is rendered.

    Default: none
    Limits: at least 0s, and at most `Max`
    Example: 5s
    Effect: none, because the node renders a template once its data exist
    """
    max: DurationNs | None = None
    """After which time the template is rendered even if its data still change.

    Default: none
    Example: 20s
    Effect: none, because the node renders a template once its data exist
    """


class Template(Record):
    """A text with placeholders that the node renders to a file of the task."""

    source_path: str = ""
    """The file with the template, as the task sees it.

    An artifact can provide it. Either `SourcePath` or `EmbeddedTmpl` is required.

    Default: none
    Example: local/app.conf.tpl
    """
    dest_path: str = ""
    """The file that is written, as the task sees it: usually below `local/`, or below `secrets/` for secrets.

    Default: none; required
    Limits: inside of the folder of the allocation; no two templates of a task with the same destination
    Example: local/app.conf
    """
    embedded_tmpl: str = ""
    """The text of the template itself.

    In HCL the argument is `data`, usually a heredoc.

    Default: none
    Limits: at most 4,194,304 characters
    Example: {{ range service "db" }}{{ .Address }}{{ end }}
    """
    change_mode: str = ChangeMode.RESTART
    """What happens to the task when the result of the template has changed.

    Values:
        restart: the task is restarted
        signal: the task gets `ChangeSignal`, such as to read its configuration again
        script: `ChangeScript` runs inside the task
        noop: nothing; the file is changed
    Example: signal
    """
    change_signal: str = ""
    """The signal for the change mode `signal`.

    Default: `SIGHUP` with the change mode `signal`, otherwise none
    Limits: not with `Envvars`
    Example: SIGUSR1
    """
    change_script: ChangeScript | None = None
    """The program for the change mode `script`.

    Default: none; required for `script`
    """
    once: bool = False
    """Whether the template is rendered only once, and changes of its data are ignored."""
    splay: DurationNs = 5 * SECOND
    """The longest random delay before the task is notified of a change, so that not all tasks react at once.

    The longest splay of a task's templates counts for all of them.

    Limits: at least 0s
    Example: 1m
    """
    perms: str = "0644"
    """The permissions of the file, as octal number in quotes.

    Limits: 1 to 5 octal digits
    Example: "0600"
    """
    uid: int | None = None
    """The number of the user who owns the file.

    Default: the user of the agent
    Limits: 0 to 4,294,967,294
    Example: 1000
    """
    gid: int | None = None
    """The number of the group that owns the file.

    Default: the group of the agent
    Limits: 0 to 4,294,967,294
    Example: 1000
    """
    left_delim: str = "{{"
    """The text that begins an expression.

    Change it if the file itself contains `{{`.

    Example: "[["
    """
    right_delim: str = "}}"
    """The text that ends an expression.

    Example: "]]"
    """
    envvars: bool = False
    """Whether the result defines environment variables: one `NAME=value` in each line.

    A changed value takes effect at the next start of the task.

    Limits: not with the change mode `signal`
    """
    err_missing_key: bool = False
    """Whether the task fails if the template reads a key that a map does not have.

    Without it, the value is empty.
    """
    wait: TemplateWait | None = None
    """How long the node waits for the data of the template to stop changing.

    Effect: none, because the node renders a template once its data exist
    """
    vault_grace: DurationNs = 0
    """The time before the end of a lease in Vault.

    Example: 0s
    Effect: none
    Deprecated: leave it out
    """


class GetterMode(StrEnum):
    """Whether an artifact is downloaded as a file or unpacked as a folder; `ANY` decides by its content."""

    ANY = "any"
    FILE = "file"
    DIR = "dir"


class Artifact(Record):
    """A file or folder that is downloaded into the task's folder before the task starts."""

    getter_source: str = ""
    """The address of the file or repository.

    Supported are `http://`, `https://`, Git repositories (`git::…`), and paths in the task's folder, such as of
    an earlier artifact. A part of an archive or repository is selected by `//`, as in
    `https://host/app.tar.gz//bin`. References are replaced on the node.

    Default: none; required
    Example: https://example.com/app.tar.gz
    """
    getter_options: dict[str, str] | None = None
    """Options of the download: `checksum` (such as `sha256:…`), `archive` (the kind of the archive; `false` does
    not unpack it), `filename`, and for repositories `ref`, `depth` and `sshkey`.

    Default: none
    Limits: `checksum` is the type `md5`, `sha1`, `sha256` or `sha512`, a colon and all hexadecimal digits
    Example: {"archive": "false"}
    """
    getter_headers: dict[str, str] | None = None
    """Headers of the HTTP request, such as for a token.

    Default: none
    Example: {"Accept": "application/gzip"}
    """
    getter_mode: str = GetterMode.ANY
    """What is stored.

    Values:
        any: an archive is unpacked, another file is stored as it is
        file: one file, with the name of `RelativeDest`
        dir: the content of an archive or repository, as a folder
    Example: file
    """
    getter_insecure: bool = False
    """Whether any TLS certificate of the host is accepted.

    Use it only together with a checksum.
    """
    relative_dest: str = ""
    """Where the artifact is stored, as the task sees it.

    Default: `local/`; with the mode `file`, `local/` and the last part of the source's path
    Limits: inside of the folder of the allocation
    Example: local/app
    """
    chown: bool = False
    """Whether the files belong to the user of the task.

    Without it, they belong to the user of the agent.
    """
