"""Finds and runs CNI plugins: programs that configure network interfaces (Container Network Interface)."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from wharf.node.subprocesses import ProgramResult, run_program

PLUGIN_TIMEOUT_S: Final = 60.0
"""Limit of one call; protects the start of a task from a plugin that hangs."""
FALLBACK_FOLDERS: Final = ("/usr/lib/cni", "/usr/libexec/cni")
"""Where packages of Linux distributions install plugins."""
PLUGIN_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH of plugins."""
_PROTOCOL_VERSIONS_LABEL: Final = "versions supported:"
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
_PLUGIN_VERSION: Final = re.compile(r"plugin v(\d+\.\d+\.\d+\S*)")


class CniPluginError(Exception):
    """The error of a CNI plugin that failed. Its message is a sentence."""


class _ErrorOutput(msgspec.Struct):
    """The JSON object that a CNI plugin prints when it fails."""

    msg: str = ""
    details: str = ""


class CniPlugins:
    """The CNI plugins that are installed on this machine."""

    def __init__(self, path: str) -> None:
        """Create the finder. `path` lists the folders with plugins, separated by colons as in PATH."""
        self._folders = [Path(folder) for folder in (*path.split(":"), *FALLBACK_FOLDERS) if folder]
        self._versions: dict[str, str] = {}

    def find_program(self, name: str) -> Path | None:
        """Return the path of a plugin; None if it is not installed, or if `name` contains a path."""
        if os.path.basename(name) != name:
            return None
        return next((file for folder in self._folders if os.access(file := folder / name, os.X_OK)), None)

    async def find_version(self, name: str) -> str:
        """Return the version of a plugin; empty if it is not installed or prints no version.

        If a plugin does not print its own version, its newest protocol version is returned. A version is read once and
        cached.
        """
        if name not in self._versions:
            version = await self._read_version(name)
            if not version:
                return ""
            self._versions[name] = version
        return self._versions[name]

    async def _read_version(self, name: str) -> str:
        """Run the plugin to read its version; empty if it is not installed or prints none."""
        program = self.find_program(name)
        if program is None:
            return ""
        try:
            # Called without a command, a plugin prints its version and its protocol versions on standard error.
            result = await _run_plugin(program, {}, b"")
        except CniPluginError:
            return ""
        text = result.errors.decode(errors="replace")
        if plugin_version := _PLUGIN_VERSION.search(text):
            return plugin_version[1]
        protocol_versions = _VERSION.findall(text.partition(_PROTOCOL_VERSIONS_LABEL)[2])
        return max(protocol_versions, key=lambda version: [int(part) for part in version.split(".")], default="")

    async def call_plugin(
        self,
        command: str,
        config: Mapping[str, Any],
        *,
        container: str,
        namespace: Path | None,
        interface: str,
        args: str = "",
    ) -> Any:  # The plugin's JSON; None if it prints nothing.
        """Run the plugin that `config` names with the command `ADD` or `DEL`. Return its JSON; None if it prints
        nothing.

        `container` is the id that the plugin gets for the namespace. `namespace` is None if it is gone, which only `DEL`
        accepts. `args` is the variable CNI_ARGS. Raises CniPluginError.
        """
        name = str(config["type"])
        program = self.find_program(name)
        if program is None:
            folders = ", ".join(map(str, self._folders))
            raise CniPluginError(f"network plugin {name} not found in {folders}: install it or set client.cni_path")
        variables = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": "" if namespace is None else str(namespace),
            "CNI_IFNAME": interface,
            "CNI_PATH": ":".join(map(str, self._folders)),
            **({"CNI_ARGS": args} if args else {}),
        }
        result = await _run_plugin(program, variables, msgspec.json.encode(config))
        if result.exit_code:
            why = _read_error_text(result) or f"exit code {result.exit_code}"
            raise CniPluginError(f"network plugin {name} failed: {why}")
        try:
            return msgspec.json.decode(result.output) if result.output.strip() else None
        except msgspec.DecodeError as error:
            raise CniPluginError(f"network plugin {name} printed invalid JSON: {error}") from error


async def _run_plugin(program: Path, variables: Mapping[str, str], input_data: bytes) -> ProgramResult:
    """Run a plugin to its end and return its output and exit code.

    It is killed on cancellation too, because nothing would remove what it creates later. Raises CniPluginError if it
    cannot be started or exceeds its time limit.
    """
    environment = {"PATH": PLUGIN_PATH, **variables}
    try:
        return await run_program([program], environment=environment, input_data=input_data, timeout_s=PLUGIN_TIMEOUT_S)
    except TimeoutError:
        raise CniPluginError(f"network plugin {program.name} did not end within {PLUGIN_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise CniPluginError(f"network plugin {program} cannot be started: {error.strerror}") from error


def _read_error_text(result: ProgramResult) -> str:
    """Return the error message of a failed plugin: from its JSON, or else its standard error."""
    try:
        error = msgspec.json.decode(result.output, type=_ErrorOutput)
    except msgspec.MsgspecError:
        return result.errors.decode(errors="replace").strip()
    return ": ".join(filter(None, (error.msg, error.details)))
