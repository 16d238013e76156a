"""examples/4_add_rms_norm: its programs, and its page's figures. The operator's own tests: test_add_rms_norm.py."""

import json
import os
from pathlib import Path

import pytest
import torch
from test_add_rms_norm import cuda_home

ROOT = Path(__file__).resolve().parent.parent


def test_program(run):
    """As a user runs it, and with nvcc, where there is one, also without a GPU."""
    done = run("examples/4_add_rms_norm/add_rms_norm.py", CUDA_HOME=cuda_home() or "")
    assert "cpu: values and gradients are torch's" in done.stdout
    assert ("cuda: values and gradients are torch's" in done.stdout) == torch.cuda.is_available()
    assert "refused, as it should be" in done.stdout
    if torch.version.cuda and cuda_home():
        assert list(Path(os.environ["TORCH_EXTENSIONS_DIR"]).rglob("add_rms_norm_kernel.cuda.o"))


@pytest.mark.thorough
def test_model(run):
    run("examples/4_add_rms_norm/model.py", CUDA_HOME=cuda_home() or "")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("program", ["bench.py", "ladder.py"])
def test_without_a_gpu(program, run):
    assert "torch sees no GPU here" in run(f"examples/4_add_rms_norm/{program}", status=1).stderr


def test_page():
    """The figures of docs/8_reduction.md are those that were measured."""
    page = (ROOT / "docs" / "8_reduction.md").read_text()

    def digits(x):
        return f"{x:.0f}" if x >= 1000 else f"{x:.3g}"

    def results(name):
        return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())["results"]

    steps = {(row["pass"], row["step"]): [] for row in results("h200-add-rms-norm-steps")}
    for row in results("h200-add-rms-norm-steps"):
        steps[row["pass"], row["step"]].append(digits(row["us"]))
    for (what, step), times in steps.items():
        if what == "forward":
            assert f"| {step} | {' | '.join(times)} |\n" in page
        else:  # only the largest tensor, in a sentence
            assert f" {times[0]} us" in page
    lines = {(row["width"], row["rows"]): [] for row in results("h200-add-rms-norm") if row["rows"] in (2048, 16384)}
    for row in results("h200-add-rms-norm"):
        if (row["width"], row["rows"]) in lines:
            best = min(row[name] for name in ("torch", "torch.compile", "liger"))
            lines[row["width"], row["rows"]] += [digits(best), digits(row["add_rms_norm"]), f"{row['of_peak']:.0%}"]
    shown = {key: line for key, line in lines.items() if "| {} | {} |".format(*key) in page}
    assert len(shown) >= 5
    for (width, rows), line in shown.items():
        assert f"| {width} | {rows} | {' | '.join(line)} |\n" in page
