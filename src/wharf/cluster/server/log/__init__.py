"""How a server process reads, follows, writes, bootstraps and compacts the log."""
