"""The error that a person can act on."""


class UserError(Exception):
    """One line: what, where, what was expected, what to do. Programs print it and exit 1."""
