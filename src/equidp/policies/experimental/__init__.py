"""Young methods, which may change or go; docs/experimental.md says what moves one up.

The table of methods lists them, and nothing else imports them.
"""
