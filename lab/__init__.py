"""The workbench: builds add2 three ways, measures it, trains with it. It knows the operator; the operator does not know
it, and it is not shipped."""


class Failure(RuntimeError):
    """What a user can cure. The text says what was found and what to do; no traceback is needed."""
