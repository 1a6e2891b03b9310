"""Locations in TOML files and the problems found in them.

The schemas of rules files and settings files use this package.
"""
