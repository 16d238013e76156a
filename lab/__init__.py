"""The workbench. It knows the operator; the operator does not know it, and it is not shipped.

build/ builds and loads add2, bench/ times it, train/ trains with it; cli.py is what the programs share. Imports run one
way: programs, then bench or train, then cli and build.
"""


class Failure(RuntimeError):
    """An error that the user can cure. Its text says what was found and what to do; no traceback is needed."""
