"""What a person gave cannot be used: told in one sentence, never as a traceback."""


class BadInput(Exception):
    """One sentence that says what was given, what is allowed and what to do.

    The command line prints it on stderr and leaves with exit code 2.
    """
