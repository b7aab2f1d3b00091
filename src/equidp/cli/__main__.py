"""`python -m equidp.cli`."""

from equidp.cli import main

main()
