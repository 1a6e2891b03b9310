"""The decision logic of the rate limiter: request facts, rules, counters and a time go in, a decision comes out.

Nothing in this package does I/O or reads a clock. Times are milliseconds of Unix time; callers of this package pass
the time and the ids.
"""
