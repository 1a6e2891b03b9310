"""Rate limiting for any HTTP service: rules, callers, counters, and what a caller is told.

It stands alone: of the rest of the program it knows only `wharf.world`, and nothing of jobs or repositories. `core`
decides and never waits; `rules` reads and checks the rules; `stores` keeps the counters.
"""
