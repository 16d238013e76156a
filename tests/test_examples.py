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

from lab import figures
from lab.build import toolchain

ROOT = Path(__file__).resolve().parent.parent
TORCH = Path(torch.__file__).parent


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
        valgrind = ["valgrind", "--leak-check=full", "--errors-for-leak-kinds=definite,indirect,possible"]
        command = [*valgrind, "--error-exitcode=9", project / "build/example/example"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    installed = {str(path.relative_to(project / "build/prefix")) for path in (project / "build/prefix").rglob("*.*")}
    assert {"lib/libadd2.so", "include/add2.h", "lib/cmake/add2/add2Config.cmake"} <= installed


def test_ways(project, tmp_path):
    """Each way that can run here gives torch's result: ways.py ends in an error otherwise."""
    on_gpu = torch.cuda.is_available()
    some = ("torch.add", "torch.compile", "jit")
    command = [sys.executable, "examples/ways/ways.py", "--json", tmp_path / "ways.json"]
    command += [] if on_gpu else [word for way in some for word in ("--way", way)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["way"]: row for row in json.loads((tmp_path / "ways.json").read_text())["ways"]}
    assert set(rows) == ({*some, *figures.WAYS} if on_gpu else {*some})
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


def test_fused(run, tmp_path):
    done = run("examples/fused/fused.py", TORCH_EXTENSIONS_DIR=str(tmp_path))
    assert "cpu: the same as torch; the gradient, the contract and the compiled call are right" in done.stdout
    assert ("cuda: the same" in done.stdout) == torch.cuda.is_available()
    assert "refused, as it should be" in done.stdout


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


@pytest.mark.thorough
@pytest.mark.parametrize("build", ["jit", "setup", "cmake"])
def test_new_operator(build, own_operator, tmp_path):
    """`python3 -m lab.new`: another name, and the three builds and the tests pass as they are."""
    env = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")}
    tests = ["tests/operator/test_values.py", "tests/operator/test_checks.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, "--build", build]
    done = subprocess.run(command, cwd=own_operator, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    command = [sys.executable, "time.py", "--compiler", build, "--device", "cpu", "--sizes", "100"]
    done = subprocess.run(command, cwd=own_operator, env=env, capture_output=True, text=True, check=False)
    assert "torch_launch_scaled_add" in done.stdout, done.stderr


@pytest.fixture(scope="module")
def own_operator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own") / "scaled add"
    command = [sys.executable, "-m", "lab.new", "scaled_add", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "python3 time.py --compiler jit" in done.stdout
    left = [path for path in folder.rglob("*") if path.is_file() and re.search("(?<!__h)add2", path.read_text(), re.I)]
    assert left == []
    assert [path for path in folder.rglob("*add2*")] == []
    assert "__hadd2(" in (folder / "kernel" / "scaled_add_kernel.cu").read_text()
    return folder


@pytest.mark.parametrize("name", ["Add", "my-op", "torch", "json", "class", ""])
def test_new_operator_of_a_bad_name(name, run, tmp_path):
    done = run("-m", "lab.new", name, tmp_path / "x", status=2)
    assert "name" in done.stderr
    assert not (tmp_path / "x").exists()


def test_new_operator_overwrites_nothing(run, tmp_path):
    (tmp_path / "mine").write_text("")
    assert "not empty" in run("-m", "lab.new", "other", tmp_path, status=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
