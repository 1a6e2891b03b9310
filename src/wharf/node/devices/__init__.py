"""Devices such as GPUs, reported and reserved by plugins.

Servers decide which task is assigned which instances; only the plugin knows how to use an instance.
"""
