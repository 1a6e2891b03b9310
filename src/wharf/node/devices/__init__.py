"""Devices such as GPUs, reported and reserved by plug-ins.

Servers decide which task is assigned which instances; only the plug-in knows how to use an instance.
"""
