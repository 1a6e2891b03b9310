"""The problems found in TOML files.

The schemas of rules files and settings files use this package.
"""
