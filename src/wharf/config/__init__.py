"""Configuration: files, folders, environment and flags, merged into the settings that each package declares.

It says of every value where it came from, and of every mistake which file, key and line it is in, all at once. It
starts nothing and decides nothing with the values.

`configuration.load` reads; `settings.Settings` is what comes out. Nothing is loaded here: a child of the agent needs
the settings and not what reads them.
"""
