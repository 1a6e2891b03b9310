"""Finds and runs CNI plug-ins: programs that configure network interfaces (Container Network Interface)."""

import asyncio
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

PLUGIN_TIMEOUT_S: Final = 60.0
FALLBACK_FOLDERS: Final = ("/usr/lib/cni", "/usr/libexec/cni")
"""Where distributions put them."""
PLUGIN_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_SPEAKS: Final = "versions supported:"
_NUMBER: Final = re.compile(r"\d+\.\d+\.\d+")
_NAMED: Final = re.compile(r"plugin v(\d+\.\d+\.\d+\S*)")


class CniPluginError(Exception):
    """A plug-in failed. The message is a sentence."""


class _Refused(msgspec.Struct):
    msg: str = ""
    details: str = ""


class CniPlugins:
    def __init__(self, path: str) -> None:
        """`path`: folders with plug-ins, separated as in PATH."""
        self._folders = [Path(folder) for folder in (*path.split(":"), *FALLBACK_FOLDERS) if folder]
        self._versions: dict[str, str] = {}

    def find_program(self, name: str) -> Path | None:
        """Return the path of a plug-in. A name that contains a path is not found."""
        if os.path.basename(name) != name:
            return None
        return next((file for folder in self._folders if os.access(file := folder / name, os.X_OK)), None)

    async def find_version(self, name: str) -> str:
        """What it says of itself; where it does not know, the newest version of the protocol that it speaks. Empty: it
        is not there. Asked once."""
        if name not in self._versions:
            found = await self._ask_version(name)
            if not found:
                return ""
            self._versions[name] = found
        return self._versions[name]

    async def _ask_version(self, name: str) -> str:
        program = self.find_program(name)
        if program is None:
            return ""
        try:
            # Asked for nothing, a plugin tells who it is and which versions of the protocol it speaks.
            _, _, said = await _run(program, {}, b"")
        except CniPluginError:
            return ""
        text = said.decode(errors="replace")
        if named := _NAMED.search(text):
            return named[1]
        spoken = _NUMBER.findall(text.partition(_SPEAKS)[2])
        return max(spoken, key=lambda version: [int(part) for part in version.split(".")], default="")

    async def call_plugin(
        self,
        command: str,
        config: Mapping[str, Any],
        *,
        container: str,
        namespace: Path,
        interface: str,
        args: str = "",
    ) -> Any:  # The plugin's JSON; None where it says nothing.
        """Call a plug-in with `ADD` or `DEL` and return its JSON; None if it prints nothing. Raises CniPluginError."""
        name = str(config["type"])
        program = self.find_program(name)
        if program is None:
            folders = ", ".join(map(str, self._folders))
            raise CniPluginError(f"there is no network plugin {name} in {folders} (client.cni_path)")
        variables = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": str(namespace),
            "CNI_IFNAME": interface,
            "CNI_PATH": ":".join(map(str, self._folders)),
            **({"CNI_ARGS": args} if args else {}),
        }
        code, answer, said = await _run(program, variables, msgspec.json.encode(config))
        if code:
            raise CniPluginError(f"the network plugin {name} refuses: {_reason(answer, said) or f'exit code {code}'}")
        try:
            return msgspec.json.decode(answer) if answer.strip() else None
        except msgspec.DecodeError as error:
            raise CniPluginError(f"the network plugin {name} answers what is no JSON") from error


async def _run(program: Path, variables: Mapping[str, str], told: bytes) -> tuple[int, bytes, bytes]:
    """Raises CniPluginError."""
    pipe = asyncio.subprocess.PIPE
    # A file, not a pipe: a plugin that ends before it has read what it is told would break that in the writer's hands.
    paper = os.memfd_create("paper")
    try:
        os.write(paper, told)
        os.lseek(paper, 0, os.SEEK_SET)
        process = await asyncio.create_subprocess_exec(
            program, stdin=paper, stdout=pipe, stderr=pipe, env={"PATH": PLUGIN_PATH, **variables}
        )
    except OSError as error:
        raise CniPluginError(f"the network plugin {program} cannot be started: {error.strerror}") from error
    finally:
        os.close(paper)
    try:
        async with asyncio.timeout(PLUGIN_TIMEOUT_S):
            answer, also = await process.communicate()
    except TimeoutError:
        raise CniPluginError(f"the network plugin {program.name} did not end within {PLUGIN_TIMEOUT_S:g} s") from None
    finally:
        # Also where nobody waits for it any more: what it would make later nobody would take away.
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    assert process.returncode is not None, "it has ended"
    return process.returncode, answer, also


def _reason(answer: bytes, said: bytes) -> str:
    try:
        refused = msgspec.json.decode(answer, type=_Refused)
    except msgspec.MsgspecError:
        return said.decode(errors="replace").strip()
    return ": ".join(filter(None, (refused.msg, refused.details)))
