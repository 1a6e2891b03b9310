"""Relaying of requests to other processes, servers and regions."""
