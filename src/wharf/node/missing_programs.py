"""The messages about programs that a task cannot start because they do not exist."""


def describe_missing_program(command: str, place: str = "") -> str:
    """Return that a program was not found, and what to do. `place` says where it was searched, such as ` in the image`."""
    name, blank, _ = command.partition(" ")
    fix = "write the full path of the program, or set PATH in env"
    if "/" in command:
        fix = "check the path"
    if blank:
        fix = f'command is the program alone: write command = "{name}", and put the arguments into args'
    searched = "does not exist" if "/" in command else "not found in PATH"
    shown = f'"{command}"' if blank else command
    return f"program {shown} {searched}{place}: {fix}"
