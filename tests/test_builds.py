"""load() from the outside: it follows the sources, whatever else builds; failures that docs/troubleshooting.md lists.

Each test starts one Python, which forks for every load(): importing torch takes seconds, and a process can register an
operator only once. The sources are next to nothing, so that a build takes a second.
"""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from lab import toolchain

ROOT = Path(__file__).resolve().parent.parent
COMPILERS = ["jit", "setup", "cmake"]
LATER = [pytest.mark.thorough, pytest.mark.anywhere]
OUTSIDE = ("CUDA_HOME", "CUDA_PATH")  # variables that would say where nvcc is
MARK = 'static const char mark[] __attribute__((used)) = "marked_by_a_test";\n'
TINY = {
    "add2.cpp": """#include <torch/csrc/stable/library.h>
        STABLE_TORCH_LIBRARY(add2, m) { m.def("add2(Tensor a, Tensor b) -> Tensor"); }""",
    "add2_cpu.cpp": '#include "add2.h"\n',
    "add2_kernel.cu": '__global__ void kernel() {}\nextern "C" void launch_add2_cuda() { kernel<<<1, 1>>>(); }\n',
}
FORKED = """
import json, os, sys, torch
from pathlib import Path
from lab import build

def start(compiler, rebuild=False, **env):
    out, to_parent = os.pipe()
    if os.fork() == 0:
        os.environ.update(env)
        try: text = str(build.load(compiler, rebuild).library)
        except BaseException as error: text = f"{type(error).__name__}: {error}"
        os.write(to_parent, text.encode())
        os._exit(0)
    os.close(to_parent)
    return os.fdopen(out)

def load(*arguments, **env):  # the library's path, or the error
    return start(*arguments, **env).read()

def has(library, word): return word.encode() in Path(library).read_bytes()
"""


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
def script(run, tmp_path):
    """Run a script with load() of FORKED; returns what it has put into `found`, and its stderr."""

    def script(code, *arguments, root, drop=(), **env):
        code = FORKED + "found = {}\n" + textwrap.dedent(code) + "\nprint(json.dumps(found))"
        env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "jit cache"), "ADD2_WITH_CUDA": "0"} | env  # the CPU: faster
        done = run("-c", code, *arguments, root=root, drop=drop, **env)
        return json.loads(done.stdout.splitlines()[-1]) | {"stderr": done.stderr}

    return script


@pytest.mark.parametrize("compiler", ["jit", *(pytest.param(x, marks=LATER) for x in COMPILERS[1:])])
def test_follows_the_sources(compiler, tiny, script, tmp_path):
    """What a killed build leaves; two processes at once; a mistake; an edited header; --rebuild."""
    code = """
        compiler, folder, mark = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
        source, header = Path("kernel/add2_cpu.cpp"), Path("include/add2.h")
        (folder / "jit cache/add2").mkdir(parents=True)
        (folder / "jit cache/add2/lock").touch()  # torch 2.15 leaves it after each build
        found["at once"] = [answer.read() for answer in [start(compiler), start(compiler)]]
        library = Path(found["at once"][0])
        source.write_text("int broken = no_such_name;")
        found["broken"] = load(compiler)
        source.write_text('#include "add2.h"')
        header.write_text(header.read_text() + mark)
        found["header"] = [has(library, "marked_by_a_test"), has(load(compiler), "marked_by_a_test")]
        found["times"] = [library.stat().st_mtime_ns]
        for rebuild in (False, True):
            load(compiler, rebuild)
            found["times"].append(library.stat().st_mtime_ns)
    """
    found = script(code, compiler, tmp_path, MARK, root=tiny)
    left = {"jit": tmp_path / "jit cache/add2/add2.so", "setup": tiny / "add2/_C.abi3.so"}
    assert found["at once"] == [str(left.get(compiler, tiny / "build/libadd2.so"))] * 2
    assert "no_such_name" in found["broken"]
    assert found["header"] == [False, True]
    first, again, rebuilt = found["times"]
    assert (first == again) == (compiler != "setup")  # setuptools always links
    assert rebuilt != again
    assert " -c " in found["stderr"]  # --rebuild shows the commands
    assert "-shared" in found["stderr"]


def test_failed_builds(tmp_path, tiny, script):
    """The tool's own error, in the words that docs/troubleshooting.md lists; or a message with the cure."""
    (tiny / "kernel/add2_cpu.cpp").write_text('extern "C" int no_such_function();\nint used = no_such_function();\n')
    cases = {
        "undefined": ("jit", {}, ["undefined symbol: no_such_function", "docs/troubleshooting.md"]),
        "no folder": ("jit", {"TORCH_EXTENSIONS_DIR": __file__}, ["Not a directory"]),
        "no compiler": ("setup", {"CXX": "no-such-compiler"}, ["no-such-compiler is not installed", "apt-get"]),
        "a broken compiler": ("jit", {"CXX": "/bin/false"}, ["/bin/false cannot compile", "apt-get"]),
        "two words": ("jit", {"CXX": "ccache c++"}, ["another program, without arguments"]),
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
    code = "for name, (compiler, env, _) in json.loads(sys.argv[1]).items(): found[name] = load(compiler, **env)"
    found = script(code, json.dumps(cases), root=tiny)
    if torch.cuda.is_available():  # a process that has counted the GPUs, as cpp_extension does, keeps the number
        hidden = {name: case for name, case in cases.items() if "no GPU" in name}
        found |= script(code, json.dumps(hidden), root=tiny, CUDA_VISIBLE_DEVICES="")
    for name, (_, _, words) in cases.items():
        assert [word for word in words if word not in found[name]] == [], (name, found[name])


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
    env = {"CXX": "/bin/false", "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    told = run("-m", "lab.doctor", status=1, drop=("CUDA_HOME", "CUDA_PATH"), **env).stdout
    rows = {line[7:].split()[0]: line for line in told.splitlines()}
    wrong = {"C++", *["CUDA_HOME"] * bool(root)}
    assert {subject for subject, row in rows.items() if row.startswith("WRONG")} == wrong
    assert {"torch", "GPU", "nvcc", "ninja", "cmake", "setuptools"} <= rows.keys()
    assert (f"not used ({tmp_path}/bin/nvcc)" in rows["nvcc"]) == (root is None)
    assert not root or f"`export CUDA_HOME={root}`" in rows["CUDA_HOME"]


@pytest.fixture
def nvcc():
    if toolchain.find_nvcc() is None:
        pytest.skip("needs a CUDA build of torch, and nvcc")
    return toolchain.cuda_root(toolchain.find_nvcc()) / "bin" / "nvcc"


@pytest.mark.thorough
def test_another_list_of_gpus_and_nvcc_behind_a_script(tiny, script, tmp_path, nvcc):
    """A changed TORCH_CUDA_ARCH_LIST compiles again; nvcc on PATH is a script in a folder where no toolkit is."""
    executable(tmp_path / "bin/nvcc", f'exec "{nvcc}" "$@"\n')
    code = """
        def code(compiler, gpu):
            library = Path(load(compiler, TORCH_CUDA_ARCH_LIST=gpu))
            return library.read_bytes() if build.has_cuda_code(library) else None

        for each in ("jit", "setup", "cmake"): found[each] = code(each, "7.5") != code(each, "Hopper")
    """
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "ADD2_WITH_CUDA": "1"}
    found = script(code, root=tiny, drop=OUTSIDE, **env)
    assert [found[each] for each in COMPILERS] == [True] * 3


@pytest.mark.thorough
def test_nvcc_from_pypi(tiny, script, tmp_path, nvcc):
    """No toolkit is installed; the command that the message names installs one that does, for all builds."""
    if torch.version.cuda < "13":
        pytest.skip("the wheels of CUDA 12 are no toolkit")
    words = toolchain.cuda_cure().replace('"', "").split("`")[1].split()
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path / "site", *words[4:]]
    if subprocess.run(pip, capture_output=True, check=False).returncode:
        pytest.skip("needs a package index")
    code = """
        found["nvcc"] = str(build.toolchain.find_nvcc())
        for each in ("jit", "setup", "cmake"): found[each] = has(load(each), "launch_add2_cuda")
    """
    env = {"PYTHONPATH": f"{tmp_path / 'site'}:{Path(torch.__file__).parents[1]}", "ADD2_WITH_CUDA": "1"}
    found = script(code, root=tiny, drop=OUTSIDE, **env)
    assert found["nvcc"].startswith(str(tmp_path / "site"))
    assert [found[each] for each in COMPILERS] == [True] * 3


@pytest.mark.thorough
@pytest.mark.parametrize("compiler", COMPILERS[1:])
def test_operator(compiler, project, run):
    """The tests in tests/operator that the flags of a build can change (checks and gradients are the same code)."""
    tests = [f"tests/operator/test_{name}.py" for name in ("values", "cuda", "kernels")]
    options = ["-q", "-p", "no:cacheprovider", "--all", "-k", "not compiler_warns", "--build", compiler]
    run("-m", "pytest", *options, *tests, root=project, PYTHONPATH=str(project))
