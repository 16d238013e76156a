"""lab/emulator as a tool: its command line, its cache, several files, the compiler's words."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from lab import emulator
from lab.emulator import __main__ as command
from lab.emulator import build

pytestmark = pytest.mark.anywhere

ROOT = Path(__file__).resolve().parents[1]
TRANSPOSE = str(ROOT / "examples/transpose/transpose.cu")

KERNEL = """
#include "scale.cuh"
__global__ void scale(float* y, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = factor() * x[i];
}
"""


@pytest.fixture
def files(emulator_cache, tmp_path):
    """A folder whose name has a space, with a kernel, its header, and a launcher in another file."""
    folder = tmp_path / "my kernels"
    folder.mkdir()
    (folder / "scale.cuh").write_text("__device__ float factor() { return 2; }\n")
    (folder / "kernel.cu").write_text(KERNEL)
    launcher = '#include "scale.cuh"\n__global__ void scale(float* y, const float* x, int n);\n'
    launcher += 'extern "C" void launch_scale(float* y, const float* x, int n, cudaStream_t stream) {\n'
    launcher += "  scale<<<(n + 31) / 32, 32, 0, stream>>>(y, x, n);\n}\n"
    (folder / "launcher.cu").write_text(launcher)
    return folder


def scaled(kernels):
    y = torch.zeros(50)
    report = emulator.run(kernels.launch_scale, emulator.out(y), torch.ones(50), 50)
    assert not report.is_wrong(), report
    return y[0].item()


def test_several_files(files):
    kernels = emulator.load([files / "kernel.cu", files / "launcher.cu"])
    assert scaled(kernels) == 2
    assert {function.is_kernel for function in kernels.functions.values()} == {True, False}


@pytest.mark.parametrize("flag", ["-fno-rtti", "-std=c++20", "-DRIGHT=2"])
def test_flags_that_the_precompiled_header_was_not_made_with(files, flag):
    assert scaled(emulator.load([files / "kernel.cu", files / "launcher.cu"], [flag])) == 2


def test_cache_follows_headers_and_flags(files, monkeypatch):
    sources = [files / "kernel.cu", files / "launcher.cu"]
    first = build.build(sources)
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert build.build(sources) == first
    monkeypatch.undo()
    (files / "scale.cuh").write_text("__device__ float factor() { return FACTOR; }\n")
    assert scaled(emulator.load(sources, ["-DFACTOR=3", "-lineinfo", "-arch=sm_90", "-Xcompiler", "-fPIC"])) == 3
    assert scaled(emulator.load(sources, ["-DFACTOR=5"])) == 5


def test_cache_follows_the_folder(files, monkeypatch, tmp_path):
    """The debug information names the folder of the emulator's headers, so another clone has a library of its own."""
    monkeypatch.setattr(build, "_made", lambda *_: None)
    first = build.precompiled([])
    shutil.copytree(build.HEADERS, tmp_path / "include")
    monkeypatch.setattr(build, "HEADERS", tmp_path / "include")
    assert build.precompiled([]) != first


@pytest.mark.parametrize(
    "changed", ["build.py", "translation/declarations.py", "runtime/watch.cpp", "include/cuda_runtime_api.h"]
)
def test_cache_follows_the_emulator(files, monkeypatch, tmp_path, changed):
    """After a change of the emulator's own code, no translation that the old code made is used. Compiles nothing."""
    own = tmp_path / "own"
    shutil.copytree(build.HERE, own, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(build, "HERE", own)
    monkeypatch.setattr(build, "HEADERS", own / "include")
    monkeypatch.setattr(build, "_made", lambda path, _: path)
    monkeypatch.setattr(build, "_preprocess", lambda *_: "")
    names = []
    monkeypatch.setattr(build, "_write", lambda path, _: names.append(path.name))
    build.build([files / "kernel.cu"])
    build.build([files / "kernel.cu"])
    assert names[0] == names[1]
    with (own / changed).open("a") as file:
        file.write("\n")
    build.build([files / "kernel.cu"])
    assert names[2] != names[0]


@pytest.mark.thorough
def test_several_processes_at_once(files, tmp_path):
    """They compile once, into an empty cache."""
    (tmp_path / "new").mkdir()
    shutil.copy(build.runtime(), tmp_path / "new")
    code = f"from lab.emulator import load; print(load({str(files / 'kernel.cu')!r}).library)"
    environment = os.environ | {"EMULATOR_CACHE": str(tmp_path / "new"), "PYTHONPATH": str(ROOT)}

    def start(_):
        return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)

    with ThreadPoolExecutor() as pool:
        first, second = pool.map(start, range(2))
    assert first == second
    assert not list((tmp_path / "new").glob("*.tmp"))


def test_errors_of_a_build(files, monkeypatch):
    source = files / "kernel.cu"
    source.write_text(KERNEL + "\n__global__ void wrong(float* y) { y[0] = undeclared; }\n")
    with pytest.raises(emulator.BuildError, match=r"kernel\.cu:8:\d+: error: .undeclared. was not declared"):
        emulator.load(source)
    source.write_text(KERNEL + "\nvoid launch(float* y) { scale<<<1, 32>>> }\n")
    with pytest.raises(emulator.BuildError, match=r"kernel\.cu:8: error: a launch without"):
        emulator.load(source)
    source.write_text('#include "no_such_file.h"\n')
    with pytest.raises(emulator.BuildError, match=r"no_such_file\.h"):
        emulator.load(source)
    with pytest.raises(emulator.BuildError, match="is not a file"):
        emulator.load(files / "none.cu")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(emulator.BuildError, match="no-such-compiler is not installed"):
        emulator.load(files / "launcher.cu", ["-DNEW"])


def test_names_that_the_emulator_does_not_know(files):
    """One line instead of the compiler's words; another error comes first, with these."""
    source = files / "unknown.cu"
    unknown = "int pack(int x) { return __vadd4(x, x); }\n"
    unknown += "int main() { return cudaLaunchCooperativeKernel(nullptr, 1, 1, nullptr); }\n"
    source.write_text(unknown)
    with pytest.raises(emulator.BuildError) as found:
        emulator.load(source)
    names = "__vadd4 (unknown.cu:1), cudaLaunchCooperativeKernel (unknown.cu:2): "
    assert str(found.value).startswith(f"the emulator does not know {names}")
    assert "\n" not in str(found.value)
    source.write_text("int first() { return undeclared; }\n" + unknown)
    with pytest.raises(emulator.BuildError, match=r"^g\+\+ refuses it:\n(.|\n)*undeclared(.|\n)*__vadd4"):
        emulator.load(source)
    source.write_text("#include <cub/cub.cuh>\n")
    with pytest.raises(emulator.BuildError, match=r"^the emulator does not know cub/cub.cuh \(unknown.cu:1\): .*$"):
        emulator.load(source)


def test_instructions_that_need_a_gpu(files):
    source = files / "wgmma.cu"
    source.write_text(
        "__global__ void hopper(float* y) {\n"
        '  if (y[0] == 0) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");\n'
        "}\n"
    )
    report = emulator.run(emulator.load(source).hopper[1, 32], torch.zeros(1))
    (fault,) = report.faults
    assert (fault.kind, fault.line, fault.file) == ("needs a GPU", 2, str(source))
    assert fault.message.startswith("wgmma.fence.sync.aligned needs a GPU")
    assert not emulator.run(emulator.load(source).hopper[1, 32], torch.ones(1)).faults


def test_tensors_on_a_gpu_are_refused(files):
    kernels = emulator.load(files / "kernel.cu")
    with pytest.raises(TypeError, match="argument 1: expected a tensor on the CPU, found one on meta"):
        emulator.run(kernels.scale[1, 32], torch.zeros(3, device="meta"), torch.zeros(3), 3)


# ---- The command line.


def call(capsys, *arguments):
    status = command.main(arguments)
    return status, *capsys.readouterr()


def test_command_line_runs_a_launcher(emulator_cache, capsys):
    arguments = ["launch_4_bytes", "1", "float32[256,192]:out", "float32[192,256]:arange", "192", "256"]
    status, output, _ = call(capsys, TRANSPOSE, *arguments)
    assert status == 0
    assert "one_each<unsigned int>  grid (48,1,1), block (32,32,1)" in output
    assert "49,152" in output
    assert "argument 2: [0, 256, 512, 768, 1024, 1280, ...]" in output
    status, output, _ = call(capsys, TRANSPOSE)
    assert status == 0
    assert "launcher launch_4_bytes(int64, pointer, pointer, int64, int64, stream)" in output


def test_nothing_launched_is_said(emulator_cache, capsys):
    """There is no kernel 9, and the launcher does not say so. (A launcher may also compute on the host.)"""
    arguments = ("launch_4_bytes", "9", "float32[3,2]:out", "float32[2,3]", "2", "3")
    status, output, _ = call(capsys, TRANSPOSE, *arguments)
    assert status == 1
    assert "nothing was launched\nFAULT: argument 2: 6 elements were never written" in output


def test_results_without_a_kernel(emulator_cache, tmp_path):
    """A result that the host computes or copies is written; without `watch` nobody asks; an error says enough."""
    (tmp_path / "host.cu").write_text(
        """extern "C" void on_host(float* y, const float* x, int n) { for (int i = 0; i < n; ++i) y[i] = x[i]; }
        extern "C" void copied(float* y, const float* x, int n) { cudaMemcpy(y, x, n * 4, cudaMemcpyDeviceToDevice); }
        __global__ void some(float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = 1; }
        extern "C" void launched(float* y, const float*, int n) { some<<<1, 32>>>(y, n); }
        extern "C" const char* refused(float*, const float*, int) { return "too small"; }"""
    )
    kernels = emulator.load(tmp_path / "host.cu")
    for name in ("on_host", "copied", "launched", "refused"):
        for n, watch in (5, True), (5, False), (4, False):
            report = emulator.run(getattr(kernels, name), emulator.out(torch.zeros(5)), torch.ones(5), n, watch=watch)
            assert report.unwritten == [], (name, n, watch)
            assert report.error == ("too small" if name == "refused" else None)
    report = emulator.run(kernels.launched, emulator.out(torch.zeros(5)), torch.ones(5), 4)
    assert [each.first for each in report.unwritten] == [[(4,)]]


def test_a_file_is_asked_for(capsys):
    with pytest.raises(SystemExit):
        command.main([])
    assert "required: file\n" in capsys.readouterr().err


def test_command_line_runs_a_kernel(emulator_cache, capsys):
    minimal = str(ROOT / "examples/minimal/minimal_kernel.cu")
    tensors = ["float32[300]:out", "float32[300]", "float32[299]:ones"]
    status, output, _ = call(capsys, minimal, "add<<<2, 256>>>", *tensors, "300")
    assert status == 1
    assert "directly behind the end of argument 3 (float32 [299]): element 299" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.cu"], "none.cu is not a file"),
        ([TRANSPOSE, "nothing"], "nothing is no launcher or kernel of these files; they have: launch_4_bytes("),
        ([TRANSPOSE, "launch_4_bytes", "1"], "takes 6 arguments, found 1"),
        ([TRANSPOSE, "launch_4_bytes", "1"], "(a stream behind them is added)"),
        ([TRANSPOSE, "launch_4_bytes", "float31[2]"], "float31 is no dtype of torch"),
        ([TRANSPOSE, "launch_4_bytes", "float32[9,99999999999]"], "899,999,999,991 elements; expected at most 64 GB"),
        ([shutil.which("true")], "is no text in UTF-8"),
        ([TRANSPOSE, "launch_4_bytes", "float32[2]:in"], ":in is unknown; expected one of :out"),
        ([TRANSPOSE, "launch_4_bytes", "x"], "x is no argument; expected a number"),
        ([TRANSPOSE, "launch_4_bytes<<<1, 2>>>"], "launch_4_bytes is a launcher: call it without <<<1, 2>>>"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(emulator_cache, capsys, arguments, message):
    status, output, error = call(capsys, *arguments)
    assert status == 2
    assert output == ""
    assert error.startswith("emulator: ")
    assert message in error
    assert error.count("\n") == 1


def test_a_folder_that_cannot_be_written(monkeypatch, capsys):
    """For what is compiled. Not even root writes there."""
    monkeypatch.setenv("EMULATOR_CACHE", "/proc/x")
    status, output, error = call(capsys, TRANSPOSE)
    assert (status, output) == (2, "")
    assert error.startswith("emulator: cannot write /proc/x: ")
    assert "set EMULATOR_CACHE to a folder that can be written" in error
