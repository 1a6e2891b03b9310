"""Devices that tasks may have for themselves, such as cards for computing: what plugins tell of them, and what they need.

Which task gets which instances is decided by servers; what an instance is, only its plugin knows.
"""
