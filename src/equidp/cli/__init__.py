"""The command line: one command a module, loaded when it is called."""

from equidp.cli.app import app, main

__all__ = ["app", "main"]
