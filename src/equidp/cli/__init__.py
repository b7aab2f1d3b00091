"""The command line: one command a module, loaded when it is called."""

import signal


def main() -> None:
    """Entry point of the `equidp` command."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        # Until a command is loaded: libraries lose interruptions while they load.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from equidp.cli.app import main as run

    run()
