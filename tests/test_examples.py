"""examples/: each is built as its README says, in a copy of the project, and run."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lab.build import toolchain

ROOT = Path(__file__).resolve().parent.parent
TORCH = Path(torch.__file__).parent


@pytest.mark.thorough
def test_cpp(project, tmp_path):
    """The commands of examples/cpp/README.md, word for word: an installed package, and a program without Python."""
    page = (project / "examples" / "cpp" / "README.md").read_text()
    commands = re.search(r"```sh\n(.*?)```", page, re.DOTALL)[1]
    env = os.environ | {"PATH": toolchain.tool_path()}
    env |= {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    if torch.version.cuda:  # find_package(Torch) wants a toolkit with libnvrtc, and no wrapper of nvcc
        root = toolchain.cuda_root(toolchain.find_nvcc())
        env |= {"CUDA_HOME": str(root), "PATH": f"{root}/bin:{env['PATH']}"}
        for nvrtc in TORCH.parent.glob("nvidia/*/lib/libnvrtc.so.??"):
            commands = commands.replace("-DMODEL", f'-DCUDA_nvrtc_LIBRARY="{nvrtc}" -DMODEL')
    shell = ["bash", "-e", "-c", commands]
    done = subprocess.run(shell, cwd=project, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a compiled model with add2:  the same as torch" in done.stdout
    assert done.stdout.count("the same as torch") >= 3
    assert ("add2 on the GPU:" in done.stdout) == torch.cuda.is_available()
    linked = subprocess.run(["ldd", project / "build/example/example"], capture_output=True, text=True, check=True)
    assert "libadd2.so" in linked.stdout
    assert "libpython" not in linked.stdout
    if shutil.which("valgrind") and torch.version.cuda is None:  # torch's CUDA libraries take valgrind minutes
        # MKL, which is part of torch, keeps memory for each thread that it asks for the number of threads.
        (tmp_path / "mkl").write_text("{\nmkl\nMemcheck:Leak\n...\nfun:mkl_serv_malloc\n...\n}\n")
        valgrind = ["valgrind", "--leak-check=full", "--errors-for-leak-kinds=definite,indirect,possible"]
        valgrind += [f"--suppressions={tmp_path / 'mkl'}"]
        command = [*valgrind, "--error-exitcode=9", project / "build/example/example"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    installed = {str(path.relative_to(project / "build/prefix")) for path in (project / "build/prefix").rglob("*.*")}
    assert {"lib/libadd2.so", "include/add2.h", "lib/cmake/add2/add2Config.cmake"} <= installed


@pytest.mark.thorough
def test_ways(project, tmp_path):
    """Each way that can run here gives torch's result: ways.py ends in an error otherwise."""
    on_gpu = torch.cuda.is_available()
    some = ("torch.add", "torch.compile", "jit")
    command = [sys.executable, "examples/ways/ways.py", "--json", tmp_path / "ways.json"]
    command += [] if on_gpu else [word for way in some for word in ("--way", way)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["way"]: row for row in json.loads((tmp_path / "ways.json").read_text())["ways"]}
    measured = json.loads((ROOT / "docs" / "results" / "h200-ways.json").read_text())["ways"]
    assert set(rows) == ({row["way"] for row in measured} if on_gpu else {*some})
    assert all(row["first_s"] > 0 and row["us"] > 0 for row in rows.values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["triton_add", "cuda_core_add"])
def test_ways_in_python(name, monkeypatch):
    """The two operators in one Python file: gradient, contract, torch.compile."""
    monkeypatch.syspath_prepend(ROOT / "examples" / "ways")
    add = pytest.importorskip(name).add
    a, b = torch.randn(2, 1000, device="cuda")
    a.requires_grad_()
    torch.library.opcheck(add, (a, b))
    assert torch.equal(torch.compile(add, fullgraph=True)(a, b), a + b)


@pytest.mark.thorough
@pytest.mark.skipif(toolchain.find_nvcc() is None, reason="needs nvcc")
def test_findcuda(project, run, tmp_path):
    """The .cu on its way through FindCUDA, as docs/cmake.md tells it; the library passes the operator's tests."""
    done = run(project / "examples" / "findcuda" / "follow.py", cwd=tmp_path, TORCH_EXTENSIONS_DIR=str(tmp_path))
    told = done.stdout
    for step in (
        "CUDA_NVCC_EXECUTABLE",
        "run_nvcc.cmake",
        "add2_generated_add2_kernel.cu.o.Release.cmake",
        r"set\(source_file .*add2_kernel.cu",
        r"cmake .*-P BUILD/CMakeFiles/add2.dir/\S*/add2_generated_add2_kernel.cu.o.Release.cmake",
        r"nvcc -M .*add2_kernel.cu",
        r"make2cmake.cmake",
        r"nvcc .*add2_kernel.cu.* -c -o BUILD/",
        r"\+\+ .*-shared .*add2_generated_add2_kernel.cu.o",
        r"nvcc .*-x cu -c .?PROJECT/kernel/add2_kernel.cu",
    ):
        match = re.search(step, told)
        assert match, f"{step} is not in:\n{told}"
        told = told[match.end() :]
    library = tmp_path / "build" / "findcuda" / "libadd2.so"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/operator/test_values.py"]
    command += ["tests/operator/test_checks.py", "tests/operator/test_cuda.py", "--library", library]
    tests = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert tests.returncode == 0, tests.stdout
    timed = run("time.py", "--library", library, "--sizes", "1000")
    assert "torch_launch_add2" in timed.stdout


def test_findcuda_without_nvcc(run, tmp_path):
    done = run("examples/findcuda/follow.py", "--build", tmp_path / "b", ADD2_WITH_CUDA="0", status=2)
    assert "There is no nvcc" in done.stderr
    assert "ADD2_WITH_CUDA" in done.stderr or "pip install torch" in done.stderr
    assert not (tmp_path / "b").exists()
