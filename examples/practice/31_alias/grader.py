"""The first n rows of x, in new memory"""

import torch
from grading import NotYet
from refereed import grade_operator

THINK = {
    "values": "The result has n rows, those of x.",
    "aliases": "If the caller writes into the result, does x change?",
    "dtypes": "The result has the dtype of x, whatever that is.",
    "schema": "Change the function, not its promise: torch.compile then plans with memory that is new.",
    "memory": "How many bytes are copied if x has a million rows, and n is 1?",
}


def memory_is_new():
    operator = torch.ops.practice.first_rows
    if any(each.alias_info for each in (*operator.default._schema.arguments, *operator.default._schema.returns)):
        raise NotYet("schema", "The schema says that the result shares memory with x; the task asks for a new one.")
    x = torch.zeros(100, 4)
    for n in range(101):
        if operator(x, n).untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
            raise NotYet("aliases", f"aliases: for n = {n} of 100 rows the result lies in the memory of x.")
    found = operator(x, 2).untyped_storage().nbytes()
    if found > 64:
        raise NotYet("memory", f"The result of 2 rows of 16 bytes holds {found:,} bytes of memory.")


def grade(answer):
    return grade_operator(
        answer,
        "practice::first_rows",
        inputs=lambda device: (torch.randn(5, 3, device=device), 3),
        reference=lambda x, n: x[:n].clone(),
        sizes={"columns": [(0, 1)]},
        right=("values", "aliases", "strides", "dtypes"),
        think=THINK,
        also=memory_is_new,
    )
