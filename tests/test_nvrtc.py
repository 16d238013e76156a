"""The nvrtc build: NVRTC compiles without a GPU, so that is tested everywhere; and where it cannot run, it says why.

On a GPU, `python3 -m pytest tests/operator --build nvrtc` tests the operator.
"""

import subprocess
import sys

import pytest
import torch

from lab.build import Failure, build, toolchain


@pytest.fixture
def nvrtc():
    pytest.importorskip("cuda.core", exc_type=ImportError)
    from kernel import add2_nvrtc

    return add2_nvrtc


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


def test_message_of_a_mistake(nvrtc, monkeypatch, tmp_path):
    """NVRTC's own words, with file and line."""
    lines = nvrtc.SOURCE.read_text().splitlines(keepends=True)
    number = next(i for i, line in enumerate(lines) if "return a + b" in line)
    lines[number] = lines[number].replace("a + b", "a + no_such_name")
    monkeypatch.setattr(nvrtc, "SOURCE", tmp_path / "add2_kernel.cuh")
    nvrtc.SOURCE.write_text("".join(lines))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    nvrtc.compile.cache_clear()
    with pytest.raises(Failure, match=rf'kernel/add2_kernel.cuh\({number + 1}\): error: .*"no_such_name"'):
        build("nvrtc")


def refused(words, program, *options, drop=()):
    done = subprocess.run([sys.executable, program, "--compiler", "nvrtc", *options], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("program", ["time.py", "train.py"])
def test_refused_without_a_gpu(program):
    if torch.version.cuda is None:
        refused("has no CUDA in it; install a CUDA build: `python3 -m pip install torch`", program)
    else:
        refused("it compiles for the GPU of this machine, and none is found", program)


def test_what_is_missing(monkeypatch):
    """One after the other: a CUDA build of torch, a GPU, the package cuda-core."""
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "has no CUDA in it" in toolchain.lack_for_nvrtc()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "none is found" in toolchain.lack_for_nvrtc()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "cuda", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "cuda.core", raising=False)
    assert "`python3 -m pip install cuda-core`" in toolchain.lack_for_nvrtc()
    with pytest.raises(Failure, match="cuda-core is missing"):
        build("nvrtc")


def test_jit_names_it(monkeypatch):
    """On a GPU without nvcc, or without a C++ compiler: one line says which build needs none."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.delenv("ADD2_WITH_CUDA", raising=False)
    for gpu in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        assert ("--compiler nvrtc" in toolchain.cuda_cure()) == gpu
        assert "\n" not in toolchain.cuda_cure()
        with pytest.raises(Failure) as refusal:
            toolchain.host_compiler()
        assert ("--compiler nvrtc" in str(refusal.value)) == gpu
