"""Whole clusters in one thread, on a virtual clock, from one seed.

The real server, API, client and node code runs here; only what lies beyond the ports is played: time, chance, the
network, the log in memory, the machines. Nothing here is a second model of the product.
"""
