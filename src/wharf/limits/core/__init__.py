"""What a limiter decides: request facts, rules, counters and a moment go in, a decision comes out.

Nothing in this package waits, reads a clock, or opens anything. Moments are milliseconds of Unix time, given by the
caller; ids are given too.
"""
