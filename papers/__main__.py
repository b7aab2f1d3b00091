"""`python -m papers`: a table or figure of a paper, the leaderboard, an ablation, a membership attack."""

from equidp.cli.app import command_line, main

COMMANDS = {
    "reproduce": "Make a table or figure of the papers again, beside what they print.",
    "leaderboard": "Tune all methods with equal effort, and show what privacy costs each group.",
    "ablate": "Train without noise to see which error of clipping hurts a group.",
    "membership": "Attack models, with and without privacy: whose presence in the data can be detected?",
}
"""Name -> its purpose. `papers.commands.NAME:app` is the command."""

app = command_line(
    "python -m papers", "Make results of papers again, and compare methods.", COMMANDS, "papers.commands"
)

if __name__ == "__main__":
    main(app)
