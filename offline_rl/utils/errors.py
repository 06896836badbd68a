"""The errors a user can mend."""


class UserError(Exception):
    """The user's mistake: one sentence with what, where, found, expected and the remedy.

    The command line prints it without a traceback and exits with 2.
    """
