"""`python -m papers`: a table or figure of a paper."""

from equidp.cli.app import command_line, main

COMMANDS = {
    "reproduce": "Make a table or figure of the papers again, beside what they print.",
}
"""Name -> its purpose. `papers.commands.NAME:app` is the command."""

app = command_line("python -m papers", "Make results of papers again.", COMMANDS, "papers.commands")

if __name__ == "__main__":
    main(app)
