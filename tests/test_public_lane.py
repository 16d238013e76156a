"""The operator's tests once more without the fast lane: everything in add2/ops.py, torch's public interface only."""

import pytest

# test_watched asks both lanes by itself, and what test_values and test_kernels look at is the same C++ in both.
FILES = ("checks", "gradient", "subsystems", "compile", "cuda")


@pytest.mark.thorough
@pytest.mark.anywhere
@pytest.mark.parametrize("file", FILES)
def test_operator_without_the_fast_lane(run, file):
    run("-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", f"tests/operator/test_{file}.py", ADD2_FAST="0")
