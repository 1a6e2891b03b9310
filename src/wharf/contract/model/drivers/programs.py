"""The options of tasks with the drivers `exec`, `raw_exec` and `mock`, as job files name them. The drivers check their values."""

from typing import NewType

import msgspec

DurationOption = NewType("DurationOption", str)
"""The type of an option that is a duration with a unit, such as `5m`."""


class ExecConfig(msgspec.Struct):
    """The options of a program that runs in a sandbox."""

    command: str = ""
    """The program to run: a path in the sandbox, or a name that is searched in `PATH`.

    The sandbox contains the folder of the task as `/`, and those folders of the node that the operator lists.

    Default: none; required
    Limits: without `=`
    Example: /bin/sh
    """
    args: list[str] = []
    """The arguments of the program.

    Default: none
    Example: ["-c", "exec sleep infinity"]
    """
    work_dir: str = ""
    """The working folder, as a path in the sandbox.

    Default: `/`
    Limits: an absolute path
    Example: /local
    """
    pid_mode: str = ""
    """Whether the task sees only its own processes.

    Values:
        private: only its own
        host: those of the node, if the node sets `allow_host_namespaces`
    Default: the node's setting `client.drivers.exec.default_pid_mode`
    Example: private
    """
    ipc_mode: str = ""
    """Whether the task has shared memory of its own.

    Values:
        private: of its own
        host: that of the node, if the node sets `allow_host_namespaces`
    Default: the node's setting `client.drivers.exec.default_ipc_mode`
    Example: private
    """
    cap_add: list[str] = []
    """Capabilities that the program has in addition, such as `net_bind_service`.

    Default: none
    Limits: those that the node's setting `client.drivers.exec.allow_caps` contains
    Example: ["net_bind_service"]
    """
    cap_drop: list[str] = []
    """Capabilities that the program does not have.

    Default: none
    Example: ["net_raw"]
    """


class RawExecConfig(msgspec.Struct):
    """The options of a program that runs without isolation."""

    command: str = ""
    """The program to run: a path, or a name that is searched in `PATH`.

    A relative path with `/` begins in the working folder.

    Default: none; required
    Limits: without `=`
    Example: /bin/sh
    """
    args: list[str] = []
    """The arguments of the program.

    Default: none
    Example: ["-c", "exec sleep infinity"]
    """
    work_dir: str = ""
    """The working folder.

    Default: the folder of the task
    Limits: an absolute path
    Example: /srv/app
    """
    oom_score_adj: int = 0
    """How likely the kernel kills the program when the node has no memory left; a higher number is more likely.

    Limits: 0 to 1,000
    Example: 500
    """
    denied_envvars: list[str] = []
    """Names of environment variables that the program does not receive.

    `*` stands for any text.

    Default: none
    Example: ["AWS_*"]
    """


class MockConfig(msgspec.Struct):
    """The options of a simulated task, which starts no program. Use it to test what the cluster does with a job."""

    run_for: str | int | None = None
    """How long the task runs.

    Type: duration
    Default: until it is stopped
    Example: 10s
    """
    exit_code: int = 0
    """The exit code with which the task ends.

    Example: 1
    """
    exit_signal: int = 0
    """The number of the signal that seems to end the task.

    Example: 9
    """
    exit_err_msg: str = ""
    """The error with which the task ends.

    Default: none
    Example: out of disk
    """
    start_error: str = ""
    """The error with which the start of the task fails.

    Default: none
    Example: image not found
    """
    start_error_recoverable: bool = False
    """Whether the node tries the failed start again."""
    start_block_for: str | int | None = None
    """How long the start of the task takes.

    Type: duration
    Default: 0s
    Example: 2s
    """
    kill_after: str | int | None = None
    """How long the task continues after its kill signal.

    Type: duration
    Default: 0s
    Example: 2s
    """
    go_silent: str | int | None = None
    """For how long a fake node neither sends nor receives anything.

    Real nodes ignore it.

    Type: duration
    Default: none
    Example: 30s
    """
    go_silent_after: str | int | None = None
    """How long after the start of the task a fake node becomes silent.

    Real nodes ignore it.

    Type: duration
    Default: 1s
    Example: 5s
    """
