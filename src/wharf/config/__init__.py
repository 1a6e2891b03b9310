"""Configuration: files, folders, environment and flags, merged into the settings that each package declares.

It says of every value where it came from, and of every mistake which file, key and line it is in, all at once. It
starts nothing and decides nothing with the values.
"""

from wharf.config.configuration import Configuration, Flag, load
from wharf.config.problems import ConfigurationRefused, Problem
from wharf.config.settings import Settings

__all__ = ["Configuration", "ConfigurationRefused", "Flag", "Problem", "Settings", "load"]
