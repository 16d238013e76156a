"""The nvrtc build: NVRTC compiles without a GPU, so that is tested everywhere; and where it cannot run, it says why.

On a GPU, `python3 -m pytest tests/operator --build nvrtc` tests the operator.
"""

import importlib.util
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def nvrtc():
    """add2/nvrtc.py by itself: `import add2` would register an operator in this process."""
    pytest.importorskip("cuda.core", exc_type=ImportError)
    spec = importlib.util.spec_from_file_location("nvrtc", ROOT / "add2" / "nvrtc.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def architectures():
    """All that this NVRTC knows, from sm_75 on."""
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        return []
    return [f"sm_{number}" for number in nvrtc.nvrtcGetSupportedArchs()[1] if number >= 75]


@pytest.mark.parametrize("arch", architectures())
def test_compiles(arch, nvrtc):
    """Each kernel is in the machine code, under the name by which it is looked up."""
    for dtype in nvrtc.TYPES:
        code = nvrtc.compile(arch, dtype)
        assert set(code.symbol_mapping) == set(nvrtc.kernels(dtype))
        for lowered in code.symbol_mapping.values():
            assert b".text." + lowered in code.code


PROGRAM = """
import torch, add2
a, b = torch.randn(3, 4, requires_grad=True), torch.randn(4, 3).t()
c = add2.add2(a, b)
c.sum().backward()
assert torch.equal(c, a + b) and torch.equal(a.grad, torch.ones(3, 4))
assert add2.add2.__module__ == "add2.fast"
print("done")
"""


def test_import_registers_it(nvrtc, run):
    """ADD2_NVRTC=1: `import add2` needs no library, with or without a GPU."""
    assert run("-c", PROGRAM, ADD2_NVRTC="1").stdout == "done\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("program", ["time.py", "train.py"])
def test_refused_without_a_gpu(run, program):
    refused = run(program, "--compiler", "nvrtc", status=1)
    if torch.version.cuda is None:
        assert "has no CUDA in it; install a CUDA build: `python3 -m pip install torch`" in refused.stderr
    else:
        assert "it compiles for the GPU of this machine, and none is found" in refused.stderr
    assert (refused.stdout, len(refused.stderr.splitlines())) == ("", 1)
