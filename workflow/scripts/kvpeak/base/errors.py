"""The errors that a person can act on."""

from kvpeak.base.text import plain, without_password

MOST = 2000  # characters of a message


class UserError(Exception):
    """One line: what, where, what was expected, what to do. Programs print it and exit 1.

    It may quote what others wrote: in it every character can be seen, and no address has a
    password.
    """

    def __init__(self, text: object = ""):
        super().__init__(plain(without_password(str(text)), MOST))

    def within(self, where: str) -> "UserError":
        """The same error, with where it happened before it."""
        return type(self)(f"{where}: {self}")


class Unavailable(UserError):
    """One line: what cannot be had on this machine, now. Its cells are `unavailable`; no
    failure.
    """


class Unsupported(Exception):
    """One line: what an engine was asked for and does not have. The cell's outcome, not a
    failure.
    """
