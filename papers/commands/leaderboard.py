"""`python -m papers leaderboard`: what privacy costs when all methods are tuned with equal effort."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from equidp.cli.app import command
from papers.leaderboard.check import draw_rows, print_checks
from papers.leaderboard.page import write_page
from papers.leaderboard.search import FOLDER, search
from papers.leaderboard.space import CONTESTS, PRIVATE

app = command(
    "leaderboard",
    "EQUIDP_DATA=... python -m papers leaderboard --only adult --hours 1",
    "python -m papers leaderboard --report",
    "EQUIDP_DATA=... python -m papers leaderboard --only adult --check 5",
)


@app.default
def leaderboard_command(
    *,
    only: Annotated[tuple[str, ...], Parameter(help="Datasets.", choices=CONTESTS)] = tuple(CONTESTS),
    methods: Annotated[tuple[str, ...], Parameter(help="Private methods.", choices=PRIVATE)] = PRIVATE,
    hours: Annotated[float, Parameter(help="Stop after these; default: when all is trained.")] = math.inf,
    jobs: Annotated[int, Parameter(help="Processes, of one thread each.")] = 1,
    runs: Annotated[Path, Parameter(help="Folder of finished runs.")] = Path("equidp-runs/price"),
    folder: Annotated[Path, Parameter(help="Folder of the page, with the results in it.")] = FOLDER,
    report: Annotated[bool, Parameter(help="Train nothing: write the page from stored results.")] = False,
    check: Annotated[
        int | None, Parameter(help="Run the printed command of so many random rows, and compare its figures.")
    ] = None,
    seed: Annotated[int, Parameter(help="Seed that --check draws rows by.")] = 0,
) -> None:
    """Search settings of every method with the same number of tries, and write the page.

    A stopped search goes on from its finished runs. Reads raw data without noise, and chooses settings
    without charging for it: for research on public data.
    """
    if check is not None:
        sys.exit(not print_checks(draw_rows(only, folder, check, seed), folder, runs))
    if not report:
        typed = " ".join(["python -m papers", *sys.argv[1:]])
        typed = re.sub(r" --(folder|runs)[ =]\S+", "", typed)  # folders of one machine
        search(only, methods, hours=hours, jobs=jobs, runs=runs, folder=folder, command=typed)
    write_page(folder)
