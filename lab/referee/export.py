"""Export: torch.export, and AOTInductor."""

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .operator import Operator, copies, has_numbers
from .registry import Trials, check, trial
from .trial import NotApplicable, accepts, compare, groups_of, resize, size_of


def _module(operator: Operator) -> torch.nn.Module:
    class Module(torch.nn.Module):
        def forward(self, *inputs):
            return operator.run(list(inputs))

    return Module()


def _dynamic_shapes(operator: Operator, inputs: Sequence) -> tuple:
    shapes: list[dict] = [{} for _ in inputs]
    for k, pairs in enumerate(groups_of(operator, inputs).values()):
        size = torch.export.Dim(f"size_{k}", min=2)
        for i, dim in pairs:
            shapes[i][dim] = size
    filled = [
        None if not isinstance(x, (Tensor, list)) else [dict(s) for _ in x] if isinstance(x, list) else s
        for x, s in zip(inputs, shapes, strict=True)
    ]
    return (tuple(filled),)


def _exported(operator: Operator, inputs: Sequence, is_dynamic: bool):
    shapes = _dynamic_shapes(operator, inputs) if is_dynamic else None
    return torch.export.export(_module(operator), tuple(copies(inputs)), dynamic_shapes=shapes)


def _other_sizes(operator: Operator, inputs: Sequence) -> list:
    """The inputs, and some with each group of another size."""
    found = [list(inputs)]
    for group in groups_of(operator, inputs):
        size = size_of(operator, inputs, group)[0]
        found.append(resize(operator, inputs, group, size + 3))
    return [x for x in found if accepts(operator, x)]


def exported_is_the_same(operator: Operator, device: str, is_dynamic: bool) -> None:
    """Exported, saved, loaded, and called with other contents and sizes."""
    inputs = operator.fresh(device)
    file = io.BytesIO()
    torch.export.save(_exported(operator, inputs, is_dynamic), file)
    file.seek(0)
    program = torch.export.load(file).module()
    others = _other_sizes(operator, operator.fresh(device, 1)) if is_dynamic else [operator.fresh(device, 1)]
    for each in others:
        right = [x.clone() for x in operator.run(copies(each))]
        compare(operator, list(program(*each)), right, what="exported; result")


@check(
    "give it a fake kernel that computes with symbols",
    "21_shipping",
    because_of=("values", "fake", "traced", "traced_compiled", "dynamic_sizes", "aliases", "writes"),
    seconds=120,
    of_random=False,
)
def exported(operator: Operator, device: str) -> Trials:
    """Is it right by torch.export, saved and loaded?"""
    for is_dynamic in (False, True) if groups_of(operator, operator.fresh(device)) else (False,):
        yield trial(exported_is_the_same, is_dynamic=is_dynamic)


def ahead_of_time_is_the_same(operator: Operator, device: str, is_dynamic: bool) -> None:
    """Compiled to a package by AOTInductor, loaded, and called with other contents and sizes."""
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    inputs = operator.fresh(device)
    if has_numbers(operator.call(*copies(inputs))):
        raise NotApplicable("a result is a number, and a package returns tensors")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        program = _exported(operator, inputs, is_dynamic)
        package = aoti_compile_and_package(program, package_path=str(Path(folder, "operator.pt2")))
        loaded = aoti_load_package(package)
        others = _other_sizes(operator, operator.fresh(device, 1)) if is_dynamic else [operator.fresh(device, 1)]
        for each in others:
            right = [x.clone() for x in operator.run(copies(each))]
            found = loaded(*each)
            compare(operator, list(found), right, what="by AOTInductor; result")


def load_package_of_torch(device: str) -> None:
    """A sum, compiled by AOTInductor and loaded. This dies where g++ links its C++ runtime into each library: the
    package's std::regex, which reads the device's name, then mixes two runtimes' locales (seen with torch 2.11).
    """
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    class Sum(torch.nn.Module):
        def forward(self, x):
            return x + x

    with tempfile.TemporaryDirectory() as folder:
        program = torch.export.export(Sum(), (torch.ones(3, device=device),))
        aoti_load_package(aoti_compile_and_package(program, package_path=str(Path(folder, "sum.pt2"))))


@check(
    "give it a fake kernel that computes with symbols",
    "21_shipping",
    because_of=("values", "fake", "traced", "compiled", "exported", "dynamic_sizes", "aliases", "writes"),
    compiles=True,
    seconds=240,
    without=load_package_of_torch,
    of_random=False,
)
def ahead_of_time(operator: Operator, device: str) -> Trials:
    """Is it right by AOTInductor?"""
    yield trial(ahead_of_time_is_the_same, is_dynamic=bool(groups_of(operator, operator.fresh(device))))
