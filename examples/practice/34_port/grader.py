"""y[i] = x[0] + ... + x[i], as an operator of torch instead of a function of pybind11"""

import re

import torch
from grading import NotYet
from refereed import grade_operator, load_library

THINK = {
    "call": "The name in Python is torch.ops.NAMESPACE.NAME. Where does the file say both?",
    "values": "The loop was right.",
    "strides": "What does x[::2] have in its memory? Refusing it is enough.",
    "dtypes": "What is read if x is float64? Refusing it is enough.",
    "empty": "How often does the loop run if x has no element?",
}
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


def grade(answer):
    return grade_operator(
        answer,
        "practice::running_sum",
        load=load,
        inputs=lambda device: (torch.randn(7, device=device),),
        reference=lambda x: torch.cumsum(x, 0),
        right=("values", "odd_sizes"),
        allowed=("strides", "dtypes", "empty"),
        think=THINK,
    )
