"""The store process, which owns the SQLite log of a server, and the engine of the processes that use it."""
