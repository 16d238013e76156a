"""examples/add_rms_norm, transpose and reduction: programs, nvcc's reports, and what torch traces."""

import json
import os
import re
import subprocess
from argparse import Namespace
from functools import partial
from pathlib import Path

import pytest
import torch
from test_add_rms_norm import CUDA_HOME, EPS, FOLDER, OPS, built, lib, make  # noqa: F401
from torch.autograd import forward_ad

from lab import lesson


def test_program(run):
    """As a user runs it, and with nvcc, where there is one, also without a GPU."""
    done = run("examples/add_rms_norm/add_rms_norm.py", CUDA_HOME=CUDA_HOME or "")
    assert "cpu: values and gradients are torch's" in done.stdout
    assert ("cuda: values and gradients are torch's" in done.stdout) == torch.cuda.is_available()
    assert "refused, as it should be" in done.stdout
    if CUDA_HOME:
        assert list(Path(os.environ["TORCH_EXTENSIONS_DIR"]).rglob("add_rms_norm_kernel.cuda.o"))


@pytest.mark.thorough
@pytest.mark.skipif(not CUDA_HOME, reason="needs nvcc")
@pytest.mark.parametrize("arch", [75, 90, *(pytest.param(x, marks=pytest.mark.slow) for x in (80, 86, 89, 100, 120))])
def test_no_warning_and_no_spill(arch, tmp_path):
    nvcc = Path(CUDA_HOME, "bin", "nvcc")
    warnings = ["-Werror=all-warnings", "-Xptxas=-v,--warning-as-error", "-Xcompiler=-Wall,-Werror"]
    first = [path for name in ("transpose", "reduction") for path in (FOLDER.parent / name).glob("*.cu")]
    for source in (FOLDER / "add_rms_norm_kernel.cu", *first):
        command = [nvcc, "-O3", "-std=c++17", f"-I{FOLDER.parent}", f"-arch=sm_{arch}", *warnings]
        command += ["-c", source, "-o", tmp_path / "kernel.o"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        report = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
        assert set(report) == {("0", "0", "0")}


@pytest.mark.thorough
@pytest.mark.anywhere
@pytest.mark.parametrize("program", ["bench.py", "ladder.py"])
def test_files_are_tested_first(program, run, tmp_path):
    path = f"examples/add_rms_norm/{program}"
    own, other = "h200-add-rms-norm", "h200-add-rms-norm-steps"
    if program == "ladder.py":
        own, other = other, own
    (tmp_path / "no.json").write_text("[1]")
    assert "there is no folder" in run(path, "--json", tmp_path / "missing" / "file.json", status=2).stderr
    assert "holds no results of" in run(path, "--from", f"docs/results/{other}.json", status=2).stderr
    assert "cannot read results" in run(path, "--from", tmp_path / "no.json", status=2).stderr
    run(path, "--from", f"docs/results/{own}.json", "--plot", tmp_path / "x.svg")
    assert b"NVIDIA H200" in (tmp_path / "x.svg").read_bytes()
    if not torch.cuda.is_available():  # it measures nothing, and leaves an earlier file alone
        assert "needs a GPU" in run(path, "--json", tmp_path / "no.json", status=1).stderr
        assert (tmp_path / "no.json").read_text() == "[1]"


@pytest.mark.thorough
@pytest.mark.anywhere
@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure for minutes")
@pytest.mark.parametrize("program", ["*/bench.py", "*/ladder.py", "int4_linear/model.py", "llama/compare.py"])
def test_without_a_gpu(program, run):
    for path in FOLDER.parent.glob(program):
        assert "needs a GPU" in run(path, status=1).stderr, path


def test_cut_short(monkeypatch, tmp_path):
    """The rows that a program has measured are in its file, even if it does not reach its end; so are the rivals."""

    def measure(_):
        yield {"ms": 1.5}
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(lesson.cli, "environment", lambda device: {"device": str(device)})
    monkeypatch.setattr(lesson, "RIVALS", ("pytest", "not-installed"))
    file = tmp_path / "file.json"
    with pytest.raises(KeyboardInterrupt):
        lesson.report(Namespace(content=None, json=file, plot=None), lambda: True, measure)
    content = json.loads(file.read_text())
    assert content["results"] == [{"ms": 1.5}]
    assert content["environment"]["rivals"] == {"pytest": pytest.__version__}


def test_contestants():
    """One that refuses a size is left out; ours must not refuse."""

    def refuse():
        raise RuntimeError("rows are too wide")

    row = lesson.compare({"width": 8}, {"torch": lambda: 4.0, "liger": refuse, "ours": lambda: 1.0}, "ours")
    assert row == {"width": 8, "torch": 4.0, "ours": 1.0, "of_best": 0.25}
    with pytest.raises(RuntimeError, match="too wide"):
        lesson.compare({}, {"torch": lambda: 4.0, "ours": refuse}, "ours")


@pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.is_available())
@pytest.mark.parametrize("i", range(3))
def test_second_derivatives_are_refused(i, device):
    """The gradient is a kernel without a derivative of any kind; torch.func takes torch's own functions instead."""
    a, b, weight, dy, ds = make((2, 8), device=device)
    _, s, rstd = OPS.add_rms_norm(a, b, weight, EPS)
    inputs = [dy, ds, s, weight, rstd]

    def function(x):
        return OPS.add_rms_norm_backward(*inputs[:i], x, *inputs[i + 1 :])[0]

    def jvp(function, x):
        return torch.func.jvp(function, (x,), (x,))

    def dual(x):
        with forward_ad.dual_level():
            return function(forward_ad.make_dual(x, x.detach()))

    x, compiled_jvp = inputs[i], partial(torch.compile(jvp, backend="aot_eager"), function)
    for call in (partial(jvp, function), compiled_jvp, torch.func.jacfwd(function), dual):
        with pytest.raises(RuntimeError, match="no second derivative"):
            call(x)
    leaves = [each.clone().requires_grad_() for each in (a, b, weight)]
    first = torch.autograd.grad(lib.add_rms_norm(*leaves)[0].sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(first[0].sum(), leaves)


def test_sizes_that_depend_on_data():
    def function(x, y, mask, k, weight):
        n = k.item()
        return lib.add_rms_norm(x[mask], y[~mask], weight), lib.add_rms_norm(x[:n], y[:n], weight)

    x, y, weight, *_ = make((6, 8))
    inputs = x, y, torch.tensor([True, False] * 3), torch.tensor(3), weight
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        compiled = torch.compile(function, fullgraph=True)(*inputs)
    torch.testing.assert_close(compiled, function(*inputs))
