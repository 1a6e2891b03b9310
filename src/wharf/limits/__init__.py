"""Rate limiting for any HTTP service: rules, callers, counters, decisions, and the replies to callers.

This package imports `wharf.world` and nothing else of the project; it knows nothing about jobs. `core` decides without
I/O, `rules` reads rules files, `stores` holds the counters.
"""
