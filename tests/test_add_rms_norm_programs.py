"""examples/4_add_rms_norm and examples/reduction: programs, compiler reports, and the figures of their pages."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
from test_add_rms_norm import FOLDER, cuda_home

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
@pytest.mark.parametrize("arch", [75, 80, 86, 89, 90, 100, 120])
def test_no_warning_and_no_spill(arch, tmp_path):
    if torch.version.cuda is None or cuda_home() is None:
        pytest.skip("needs nvcc")
    for source in (FOLDER / "add_rms_norm_kernel.cu", *(ROOT / "examples" / "reduction").glob("*.cu")):
        command = [Path(cuda_home(), "bin", "nvcc"), "-O3", "-std=c++17", f"-arch=sm_{arch}", "-Werror=all-warnings"]
        command += [
            "-Xptxas=-v,--warning-as-error",
            "-Xcompiler=-Wall,-Werror",
            "-c",
            source,
            "-o",
            tmp_path / "kernel.o",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        report = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
        assert report
        assert set(report) == {("0", "0", "0")}


@pytest.mark.parametrize("program", ["bench.py", "ladder.py"])
def test_files_are_tested_first(program, run, tmp_path):
    path = f"examples/4_add_rms_norm/{program}"
    assert "cannot write" in run(path, "--json", tmp_path / "missing" / "file.json", status=2).stderr
    other = {"bench.py": "h200-add-rms-norm-steps", "ladder.py": "h200-add-rms-norm"}[program]
    other = ROOT / "docs" / "results" / f"{other}.json"
    assert "holds no results of" in run(path, "--from", other, "--plot", tmp_path / "x.svg", status=1).stderr
    (tmp_path / "no.json").write_text("[1]")
    assert "cannot read results" in run(path, "--from", tmp_path / "no.json", status=1).stderr
    if not torch.cuda.is_available():  # it measures nothing, and leaves an earlier file alone
        assert "torch sees no GPU here" in run(path, "--json", tmp_path / "no.json", status=1).stderr
        assert (tmp_path / "no.json").read_text() == "[1]"


def digits(x):
    return f"{x:.0f}" if x >= 1000 else f"{x:.3g}"


def results(name):
    return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())["results"]


def test_page():
    """The figures of docs/9_add_rms_norm.md are those that were measured."""
    page = " ".join((ROOT / "docs" / "9_add_rms_norm.md").read_text().split())
    shapes = dict.fromkeys((row["rows"], row["width"]) for row in results("h200-add-rms-norm-steps"))
    steps = {(row["pass"], row["step"]): dict.fromkeys(shapes, "") for row in results("h200-add-rms-norm-steps")}
    for row in results("h200-add-rms-norm-steps"):
        steps[row["pass"], row["step"]][row["rows"], row["width"]] = digits(row["us"])
    for (what, step), times in steps.items():
        if what == "forward":
            assert " ".join(f"| {step} | {' | '.join(times.values())} |".split()) in page
        else:  # only the largest tensor, in a sentence
            assert f" {times[16384, 4096]} us" in page
    lines = {}
    for row in results("h200-add-rms-norm"):
        others = [row[name] for name in ("torch", "torch.compile", "liger", "quack") if name in row]
        best = digits(min(others)) if others else ""
        lines.setdefault((row["width"], row["rows"]), []).extend(
            [best, digits(row["add_rms_norm"]), f"{row['of_peak']:.0%}"]
        )
    shown = {key: line for key, line in lines.items() if "| {} | {} | ".format(*key) in page}
    assert len(shown) >= 5
    for (width, rows), line in shown.items():
        assert f"| {width} | {rows} | {' | '.join(line)} |" in page
