"""load() from the outside: it follows the sources, whatever else builds; failures that docs/troubleshooting.md lists.

The sources are next to nothing, so that a build takes a second.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lab import toolchain
from lab.build import COMPILERS

ROOT = Path(__file__).resolve().parent.parent
LATER = [pytest.mark.thorough, pytest.mark.anywhere]
OUTSIDE = ("CUDA_HOME", "CUDA_PATH")  # variables that would say where nvcc is
MARK = 'static const char mark[] __attribute__((used)) = "marked_by_a_test";\n'
TINY = {
    "add2.cpp": """#include <torch/csrc/stable/library.h>
        STABLE_TORCH_LIBRARY(add2, m) { m.def("add2(Tensor a, Tensor b) -> Tensor"); }""",
    "add2_cpu.cpp": '#include "add2.h"\n',
    "add2_kernel.cu": '__global__ void kernel() {}\nextern "C" void launch_add2_cuda() { kernel<<<1, 1>>>(); }\n',
}
LOAD = "import os, sys; from lab import build; print(build.load(sys.argv[1], bool(sys.argv[2:])).library)"
FAIL = "import sys; from lab import build, cli; sys.exit(cli.run(lambda: build.load(*sys.argv[1:])))"
TWICE = f"import os; child = os.fork(); exec({LOAD!r}); child and os.wait()"


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def tiny(project):
    """A copy of the project with sources that are next to nothing."""
    for name, text in TINY.items():
        (project / "kernel" / name).write_text(text)
    return project


@pytest.fixture
def load(run, tiny, tmp_path):
    """load() in a process of its own, without nvcc unless ADD2_WITH_CUDA says otherwise; returns what it printed."""

    def load(compiler, *rebuild, code=LOAD, root=tiny, status=0, drop=(), **env):
        env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "jit cache"), "ADD2_WITH_CUDA": "0"} | env
        return run("-c", code, compiler, *rebuild, root=root, status=status, drop=drop, **env)

    return load


@pytest.mark.parametrize("compiler", [pytest.param(x, marks=LATER) for x in COMPILERS])
def test_follows_the_sources(compiler, tiny, load, tmp_path):
    """What a killed build leaves; two processes at once; a mistake; an edited header; --rebuild."""
    source, header = tiny / "kernel/add2_cpu.cpp", tiny / "include/add2.h"
    left = {"jit": tmp_path / "jit cache/add2/add2.so", "setup": tiny / "add2/_C.abi3.so"}
    library = left.get(compiler, tiny / "build/libadd2.so")
    (tmp_path / "jit cache/add2").mkdir(parents=True)
    (tmp_path / "jit cache/add2/lock").touch()  # torch 2.14 and later leave it after each build
    assert load(compiler, code=TWICE).stdout.splitlines()[-2:] == [str(library)] * 2
    source.write_text("int broken = no_such_name;")
    assert "no_such_name" in load(compiler, status=None).stderr
    source.write_text('#include "add2.h"')
    header.write_text(header.read_text() + MARK)
    assert b"marked_by_a_test" not in library.read_bytes()
    load(compiler)
    assert b"marked_by_a_test" in library.read_bytes()
    first = library.stat().st_mtime_ns
    load(compiler)
    again = library.stat().st_mtime_ns
    assert (first == again) == (compiler != "setup")  # setuptools always links
    shown = load(compiler, "rebuild").stderr
    assert library.stat().st_mtime_ns != again
    assert " -c " in shown
    assert "-shared" in shown


@pytest.mark.thorough
@pytest.mark.parametrize("compiler", ["jit", pytest.param("cmake", marks=LATER)])
def test_rebuild_cures(compiler, tiny, load, tmp_path):
    """An empty library, as a full disk leaves it; for cmake also a folder that was moved. (setuptools always links.)"""
    library = Path(load(compiler).stdout.splitlines()[-1])
    library.write_bytes(b"")
    assert "--rebuild builds from nothing" in load(compiler, status=1, code=FAIL).stderr
    load(compiler, "rebuild")
    if compiler == "cmake":
        moved = tiny.rename(tmp_path / "moved")
        assert "--rebuild builds from nothing" in load(compiler, root=moved, status=1, code=FAIL).stderr
        load(compiler, "rebuild", root=moved)


@pytest.mark.thorough
def test_failed_builds(tmp_path, tiny, load):
    """The tool's own error, in the words that docs/troubleshooting.md lists; or a message with the cure."""
    (tiny / "kernel/add2_cpu.cpp").write_text('extern "C" int no_such_function();\nint used = no_such_function();\n')
    cases = {
        "undefined": ("jit", {}, ["undefined symbol: no_such_function", "docs/troubleshooting.md"]),
        "no folder": ("jit", {"TORCH_EXTENSIONS_DIR": __file__}, ["Not a directory"]),
        "no compiler": ("setup", {"CXX": "no-such-compiler"}, ["no-such-compiler is not installed", "apt-get"]),
        "a broken compiler": ("jit", {"CXX": "/bin/false"}, ["/bin/false cannot compile", "apt-get"]),
        "two words": (
            "jit",
            {"CXX": "ccache c++"},
            ["CXX is 'ccache c++', expected the name of one", "write a script"],
        ),
        "a flag": ("cmake", {"CXX": "g++ -m64"}, ["CXX is 'g++ -m64', expected the name of one program"]),
        "no jobs": ("cmake", {"MAX_JOBS": "0"}, ["MAX_JOBS is '0', expected"]),
        "jobs": ("jit", {"MAX_JOBS": "abc"}, ["MAX_JOBS is 'abc', expected"]),
        "no toolkit": ("jit", {"CUDA_HOME": "/no-such-folder"}, ["undefined symbol"]),  # it compiles
    }
    if toolchain.find_nvcc():
        says = 'echo "Cuda compilation tools, release 9.2, V9.2.88"\n'
        old = Path(executable(tmp_path / "cuda/bin/nvcc", says)).parents[1]
        no_gpu = {"ADD2_WITH_CUDA": "", "CUDA_VISIBLE_DEVICES": ""}
        with_nvcc = {
            "another CUDA": ("jit", {"CUDA_HOME": str(old)}, ["belongs to CUDA 9.2", "built with CUDA"]),
            "another CUDA, no GPU": ("setup", no_gpu | {"CUDA_HOME": str(old)}, ["undefined symbol"]),
            "unknown GPU": ("jit", {"TORCH_CUDA_ARCH_LIST": "99.0"}, ["Unknown CUDA arch"]),
            "GCC": ("jit", {"NVCC_PREPEND_FLAGS": "-D__GNUC__=99"}, ["unsupported GNU version"]),
        }
        cases |= {name: (each[0], {"ADD2_WITH_CUDA": "1"} | each[1], each[2]) for name, each in with_nvcc.items()}
    for name, (compiler, env, words) in cases.items():
        found = load(compiler, status=1, code=FAIL, **env).stderr
        assert [word for word in words if word not in found] == [], (name, found)


def test_setup_from_another_folder(run, tmp_path):
    """It finds its sources; and it says which setuptools it needs, as the doctor does."""
    version = run("setup.py", "--version", cwd=tmp_path).stdout.splitlines()[-1]
    assert f'__version__ = "{version}"' in (ROOT / "add2/__init__.py").read_text()
    (tmp_path / "setuptools-70.3.0.dist-info").mkdir()
    (tmp_path / "setuptools-70.3.0.dist-info/METADATA").write_text("Name: setuptools\nVersion: 70.3.0\n")
    cure = (
        'setuptools is 70.3.0, expected 77 or later for setup.py. Cure: `python3 -m pip install --upgrade "setuptools'
    )
    assert cure in run("setup.py", "--version", status=1, PYTHONPATH=str(tmp_path)).stderr
    assert cure in run("-m", "lab.doctor", status=1, PYTHONPATH=str(tmp_path)).stdout


def test_import_without_a_build(project, run):
    code = "try: import add2\nexcept ImportError as error: print(error)"
    assert "pip install --no-build-isolation" in run("-c", code, root=project).stdout


def test_the_page_names_tests_that_exist():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    named = re.findall(r"`(test_\w+)`", page)
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_doctor(run, tmp_path):
    """What is wrong has its cure; the rest is well, where the other tests build everything."""
    root = toolchain.find_nvcc() and toolchain.cuda_root(toolchain.find_nvcc())
    executable(tmp_path / "bin/nvcc", f'exec "{root}/bin/nvcc" "$@"\n')
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    told = run("-m", "lab.doctor", drop=OUTSIDE, **env).stdout  # what only other projects need is a note
    rows = {line[7:].split()[0]: line for line in told.splitlines()}
    assert [subject for subject, row in rows.items() if row.startswith("note")] == ["CUDA_HOME"] * bool(root)
    assert "WRONG" not in told
    told = run("-m", "lab.doctor", status=1, drop=OUTSIDE, CXX="/bin/false", **env).stdout
    assert [line.split()[1] for line in told.splitlines() if line.startswith("WRONG")] == ["C++"]
    assert {"torch", "GPU", "nvcc", "ninja", "cmake", "setuptools"} <= rows.keys()
    assert (f"not used ({tmp_path}/bin/nvcc)" in rows["nvcc"]) == (root is None)
    assert not root or f"`export CUDA_HOME={root}`" in rows["CUDA_HOME"]


@pytest.mark.thorough
@pytest.mark.parametrize("compiler", COMPILERS)
def test_another_list_of_gpus_and_nvcc_behind_a_script(compiler, load, tmp_path, nvcc):
    """A changed TORCH_CUDA_ARCH_LIST compiles again; nvcc on PATH is a script in a folder where no toolkit is."""
    executable(tmp_path / "bin/nvcc", f'exec "{nvcc}" "$@"\n')
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "ADD2_WITH_CUDA": "1"}
    codes = set()
    for gpu in ("7.5", "Hopper"):
        library = Path(load(compiler, drop=OUTSIDE, TORCH_CUDA_ARCH_LIST=gpu, **env).stdout.splitlines()[-1])
        assert b"launch_add2_cuda" in library.read_bytes()
        codes.add(library.read_bytes())
    assert len(codes) == 2


@pytest.mark.thorough
def test_nvcc_from_pypi(tiny, load, run, tmp_path, nvcc):
    """No toolkit is installed; the command that the message names installs one that does, for all builds."""
    if torch.version.cuda < "13":
        pytest.skip("the wheels of CUDA 12 are no toolkit")
    if "site-packages" in nvcc.parts:
        pytest.skip("this nvcc is from PyPI, so the other tests have used it")
    words = toolchain.cuda_cure().replace('"', "").split("`")[1].split()
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path / "site", *words[4:]]
    if subprocess.run(pip, capture_output=True, check=False).returncode:
        pytest.skip("needs a package index")
    env = {"PYTHONPATH": f"{tmp_path / 'site'}:{Path(torch.__file__).parents[1]}", "ADD2_WITH_CUDA": "1"}
    code = "from lab import toolchain; print(toolchain.find_nvcc())"
    assert run("-c", code, root=tiny, drop=OUTSIDE, **env).stdout.startswith(str(tmp_path / "site"))
    for compiler in COMPILERS:
        library = Path(load(compiler, drop=OUTSIDE, **env).stdout.splitlines()[-1])
        assert b"launch_add2_cuda" in library.read_bytes()


@pytest.mark.thorough
@pytest.mark.parametrize("compiler", COMPILERS[1:])
def test_operator(compiler, project, run):
    """The tests in tests/operator that the flags of a build can change (checks and gradients are the same code).
    Without a GPU only the CPU part: test_wheel.py (setup) and test_cpp (cmake) compile the kernels."""
    tests = [f"tests/operator/test_{name}.py" for name in ("values", "cuda", "kernels")]
    options = ["-q", "-p", "no:cacheprovider", "-k", "not emulator", "--build", compiler]
    only_cpu = {} if torch.cuda.is_available() else {"ADD2_WITH_CUDA": "0"}
    run("-m", "pytest", *options, *tests, root=project, PYTHONPATH=str(project), **only_cpu)
