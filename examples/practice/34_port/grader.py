"""y[i] = x[0] + ... + x[i], as an operator of torch instead of a function of pybind11"""

import re

import torch
from grading import NotYet
from refereed import grade_operator, load_library

THINK = {
    "call": "The name in Python is torch.ops.NAMESPACE.NAME. Where does the file say both?",
    "values": "The loop was right.",
    "writes": "The result is new memory: what must become of x?",
    "schema": "The schema is the text of m.def. A caller and a compiler read it.",
    "dimensions": "Which of the skeleton's checks has gone?",
    "strides": "What does x[::2] have in its memory? Refusing it is enough.",
    "dtypes": "What is read if x is float64? Refusing it is enough.",
    "empty": "How often does the loop run if x has no element?",
}
SCHEMA = "practice::running_sum(Tensor x) -> Tensor"
LEFT = re.compile(r"PYBIND11_MODULE|torch/extension\.h|torch/python\.h|pybind11/\w+\.h")


def load(answer):
    text = re.sub(r"//.*", "", answer.read_text("utf-8"))
    if found := LEFT.search(text):
        think = "A file that torch's dispatcher calls needs nothing of Python, and none of its headers."
        raise NotYet("pybind11", f"{answer.name} still has {found[0]}.", think=think)
    if found := re.search(r"cumsum|call_dispatcher", text):
        think = "Which lines of the skeleton speak of Python?"
        raise NotYet(
            "library", f"{answer.name} has {found[0]}: the loop is to stay, only its binding is new.", think=think
        )
    load_library(answer)


def schema_and_checks():
    operator = torch.ops.practice.running_sum.default
    if str(operator._schema) != SCHEMA:
        raise NotYet("schema", f"The schema is {operator._schema}, and the task asks for {SCHEMA}.")
    try:
        operator(torch.ones(2, 3))
    except RuntimeError:
        return
    raise NotYet("dimensions", "A matrix of 2 x 3 is neither refused nor summed: expected a vector.")


def grade(answer):
    return grade_operator(
        answer,
        "practice::running_sum",
        load=load,
        inputs=lambda device: (torch.randn(7, device=device),),
        reference=lambda x: torch.cumsum(x, 0),
        right=("values", "odd_sizes", "writes"),
        allowed=("strides", "dtypes", "empty"),
        think=THINK,
        also=schema_and_checks,
    )
