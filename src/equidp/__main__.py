"""`python -m equidp`: the command line."""

from equidp.cli import main

main()
