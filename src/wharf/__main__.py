"""`python -m wharf` is the command `wharf`."""

from wharf.cli import main

if __name__ == "__main__":
    main()
