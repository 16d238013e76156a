"""y += factor * x, by an operator whose schema says so"""

import torch
from grading import NotYet
from refereed import grade_operator

THINK = {
    "call": "What does the operator's function take and return, and what has changed when it ends?",
    "writes": "Which arguments differ after the call? The decorator tells torch about them.",
    "values": "After the call, y holds y + factor * x.",
    "written_views": "y may be a view, such as every other column of a matrix. Which memory has been written?",
    "version": "The decorator names an argument: torch raises its version. Is it the one that is written?",
    "returns": "Who needs the result? torch.compile refuses an operator that returns what it writes.",
    "schema": "A compiler copies an argument that is said to be written. Why pay for one that is only read?",
}


def in_torch(y, x, factor):
    y.add_(x, alpha=factor)


def x_is_not_written():
    if not hasattr(torch.ops.practice, "add_scaled_"):
        return
    arguments = torch.ops.practice.add_scaled_.default._schema.arguments
    written = [each.name for each in arguments if each.alias_info is not None and each.alias_info.is_write]
    if len(written) > 1:
        raise NotYet("schema", f"The schema says that {' and '.join(written)} are written. One of them is only read.")


def nothing_is_returned():
    schema = torch.ops.practice.add_scaled_.default._schema
    if schema.returns:
        raise NotYet(
            "returns", f"The operator returns nothing, and the schema says that it returns a result: {schema}."
        )


def grade(answer):
    return grade_operator(
        answer,
        "practice::add_scaled_",
        inputs=lambda device: (torch.randn(3, 5, device=device), torch.randn(3, 5, device=device), 0.5),
        reference=in_torch,
        right=("writes", "values", "version"),
        allowed=("strides", "written_views"),
        think=THINK,
        before=x_is_not_written,
        also=nothing_is_returned,
    )
