"""The SQLite engine: the log of one server in one file."""
