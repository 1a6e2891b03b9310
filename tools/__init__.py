"""The checks and chores of the project, run by the Makefile. Nothing here is part of the installed package."""
