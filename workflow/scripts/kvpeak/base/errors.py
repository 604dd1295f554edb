"""The errors that a person can act on."""


class UserError(Exception):
    """One line: what, where, what was expected, what to do. Programs print it and exit 1."""


class Unsupported(Exception):
    """One line: what an engine was asked for and does not have. The cell's outcome, not a failure."""
