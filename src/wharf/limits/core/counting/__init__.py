"""Counters in memory: fixed windows, sliding windows, concurrency leases and bans. Stores decide where they live."""
