"""Floor 5: the command line. Shows what the floors below it found; every command is one file."""

from .app import main

__all__ = ["main"]
