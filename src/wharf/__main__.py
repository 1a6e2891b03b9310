"""Runs the `wharf` command as `python -m wharf`."""

from wharf.cli import main

if __name__ == "__main__":
    main()
