"""Wiring: processes from configuration. It starts the tree, watches it, logs for it, and ends it.

The parent is small and does no work: it holds the listening socket and the data folder, and tells children what to do.
No rule of the domain is here.
"""
