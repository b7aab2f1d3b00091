"""Young kinds of runs; docs/experimental.md says what moves one up. Only commands and tests import it."""
