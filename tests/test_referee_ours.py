"""The referee judges our own operators, and finds the faults of the careless ones of pages 2 and 5.

The starter is judged in test_starter.py, the ports in test_port.py.
"""

from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401  (takes seconds, so not in each fork)

from lab.referee import judge, load
from lab.referee.registry import CHECKS

SPECS = Path(__file__).parent / "specs"
# The operators, with the questions that each answers by an error. Where an error is the usual answer (below) it may be
# one; all others that apply have to be right, so that no derivative and no transform begins to be refused.
NOT_DIFFERENTIABLE = {"lost_gradients", "tangents", "vmap"}
OURS = {
    ("add2", "add2.add2"): set(),
    ("add2", "add2::torch_launch_add2"): {"lost_gradients", "written_leaves", "tangents", "vmap"},
    ("minimal", "minimal::add"): {"tangents", "transforms", "compiled_derivatives"},
    ("rotate", "rope::rotate"): set(),
    ("add_rms_norm", "add_rms_norm::add_rms_norm"): {"second_derivatives"},
    ("gated_linear", "gated_linear::gated_linear"): set(),
    ("int4_linear", "int4_linear::int4_linear"): set(),
    ("int4_linear", "int4_linear::linear_before_norm"): NOT_DIFFERENTIABLE,
    ("int4_linear", "int4_linear::linear_after_norm"): NOT_DIFFERENTIABLE,
    ("decode_attention", "decode_attention::attend"): NOT_DIFFERENTIABLE,
    ("decode_attention", "decode_attention::append"): {"lost_gradients", "written_leaves", "vmap"},
    ("decode_attention", "decode_attention::step"): {"tangents", "written_leaves", "vmap"},
}
USUAL = {"dtypes", "mixed_dtypes", "shapes", "devices", "arguments", "garbage_values", "bounds", "written_views"}
USUAL |= {"resized_outputs", "overlaps", "same_input", "settings", "autocast", "strides", "special_values"}
TRACING = ("traced_compiled", "dynamic_sizes", "compiled_derivatives", "exported", "compiled")  # seconds each
FOLDERS = {"rotate": "rope", "gated_linear": "matmul"}


@pytest.fixture
def operator(file, title, request):
    """Its description, after the build that all tests share."""
    if file == "add2":
        request.getfixturevalue("add2")
    elif file != "minimal":
        request.getfixturevalue("lesson")(FOLDERS.get(file, file), "rope" if file == "rotate" else file)
    else:
        request.getfixturevalue("lesson")
    return load(SPECS / f"{file}.py", title)


def assert_right(operator, file, title, checks):
    findings = judge(operator, checks=checks)
    assert not [finding for finding in findings if finding.is_wrong]
    refused = {finding.check: finding.message for finding in findings if finding.verdict == "refused"}
    assert refused.keys() - USUAL == OURS[file, title] & {*checks}, refused


SHORT = ("add2.add2",)  # torch_launch_add2 is asked by tests/operator, and by TestLaunch in test_contract.py


@pytest.mark.parametrize(
    ("file", "title"), [pytest.param(*each, marks=[pytest.mark.thorough] * (each[1] not in SHORT)) for each in OURS]
)
@pytest.mark.usefixtures("forks")
def test_ours(operator, file, title):
    asked = [name for name, check in CHECKS.items() if "cpu" in check.on and "cpu" in check.unasked_on]
    assert_right(operator, file, title, [name for name in asked if not CHECKS[name].compiles and name not in TRACING])


@pytest.mark.thorough
@pytest.mark.parametrize(("file", "title"), OURS)
@pytest.mark.usefixtures("forks")
def test_ours_traced(operator, file, title):
    """The default backend, too."""
    assert_right(operator, file, title, TRACING)


@pytest.mark.thorough
@pytest.mark.parametrize("title", ["add2.add2", "torch.ops.add2.add2", "add2::torch_launch_add2"])
@pytest.mark.usefixtures("forks")
def test_add2_with_all_checks(add2, title):
    assert not [finding for finding in judge(load(SPECS / "add2.py", title)) if finding.is_wrong]


@pytest.mark.thorough
def test_add2_on_a_gpu(cuda, build, run):
    """By the command, whose process leaves CUDA alone, so that each check takes a fork."""
    run("-m", "lab.referee", SPECS / "add2.py", "--device", "cuda")


@pytest.mark.thorough
@pytest.mark.parametrize("file", sorted({file for file, _ in OURS} - {"add2", "minimal"}))
def test_lessons_on_a_gpu(file, cuda, run):
    run("-m", "lab.referee", SPECS / f"{file}.py", "--quick", "--device", "cuda")


CARELESS = {
    ("kinds", "kinds::same"): {"aliases"},
    ("kinds", "kinds::mirror_into"): {"overlaps", "version"},
    ("kinds", "kinds::checked_into"): {"version"},
    ("kinds", "kinds::note"): {"effects"},
    ("mistakes", "mistakes::careless"): {"strides", "shapes", "mixed_dtypes", "lost_gradients"},
    ("mistakes", "mistakes::careless_mirror"): {"overlaps"},
}


@pytest.mark.anywhere
@pytest.mark.parametrize(("file", "title"), [pytest.param(*each, marks=pytest.mark.thorough) for each in CARELESS])
@pytest.mark.usefixtures("forks")
def test_careless_operators(file, title, own_jit_cache):
    """Pages 2 and 6 say what is wrong with them."""
    expected = CARELESS[file, title]
    findings = judge(load(SPECS / f"{file}.py", title), checks=sorted(expected))
    found = {finding.check for finding in findings if finding.is_wrong}
    assert found == expected


@pytest.mark.anywhere
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("file", "title", "checks"),
    [
        ("kinds", "kinds::copied", ["aliases"]),
        ("kinds", "kinds::checked_into", ["overlaps"]),
        ("kinds", "kinds::note_in", ["effects"]),
        ("mistakes", "mistakes::careful", ["strides", "shapes", "mixed_dtypes", "lost_gradients"]),
        ("mistakes", "mistakes::careful_mirror", ["overlaps"]),
    ],
)
@pytest.mark.usefixtures("forks")
def test_careful_operators(file, title, checks, own_jit_cache):
    findings = judge(load(SPECS / f"{file}.py", title), checks=checks)
    assert not [finding for finding in findings if finding.is_wrong]
