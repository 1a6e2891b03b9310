"""Simulation of whole clusters in one thread, on a virtual clock, determined by one seed.

The product's own server, API, client and node code runs here. Only time, random numbers, the network, the log and the
machines are simulated.
"""
