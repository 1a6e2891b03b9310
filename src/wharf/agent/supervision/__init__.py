"""The parent process: starts, watches and stops the child processes, and talks with them."""
