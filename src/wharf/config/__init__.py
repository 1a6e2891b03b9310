"""Configuration: files, folders, environment and flags, merged into the settings that each package declares.

Records where each value came from, and reports all errors at once with file, line and key. It starts no process and
acts on no value. `configuration.load_configuration` returns `settings.AgentSettings`. This module imports nothing, because
child processes need the settings but not the code that reads them.
"""
