"""The command line: one command a module, loaded when it is called."""

import sys


def main() -> None:
    """Entry point of the `equidp` command."""
    try:
        from equidp.cli.app import main as run
    except KeyboardInterrupt:  # before there is anything to stop
        sys.exit(130)
    run()
