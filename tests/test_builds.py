"""load() from the outside: it works wherever the project lies and whoever else builds, and follows the sources.

Each test starts one Python, which forks for every load(): importing torch takes seconds, and a process can register an
operator only once. The sources are next to nothing, so that a build takes a second.
"""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from lab import build
from lab.build import toolchain

ROOT = Path(__file__).resolve().parent.parent
COMPILERS = ("jit", "setup", "cmake")
CPU_ONLY = {"ADD2_WITH_CUDA": "0"}  # compiles faster
MARK = 'static const char mark[] __attribute__((used)) = "marked_by_a_test";'
TINY = {
    "add2.cpp": """#include "add2.h"
        #include <torch/csrc/stable/library.h>
        STABLE_TORCH_LIBRARY(add2, m) { m.def("add2(Tensor a, Tensor b) -> Tensor"); }""",
    "add2_cpu.cpp": '#include "add2.h"\n',
    "add2_kernel.cu": '__global__ void kernel() {}\nextern "C" void launch_add2_cuda() { kernel<<<1, 1>>>(); }\n',
}
FORKED = '''
import json, os, signal, sys, time, torch
from pathlib import Path
from lab import build

def start(compiler, rebuild=False, **env):
    """Begin to load in a child. Returns its process ID, and where its answer comes: the library, or a message."""
    out, to_parent = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.environ.update(env)
        try: text = str(build.load(compiler, rebuild).library)
        except build.Failure as error: text = str(error)
        except BaseException as error: text = repr(error)
        os.write(to_parent, text.encode())
        os._exit(0)
    os.close(to_parent)
    return child, out

def end(child, out):
    with os.fdopen(out) as file: text = file.read()
    os.waitpid(child, 0)
    return text

def load(*arguments, **env): return end(*start(*arguments, **env))
def has(library, word): return word.encode() in Path(library).read_bytes()
'''


@pytest.fixture
def tiny(project):
    """A copy of the project with sources that are next to nothing."""
    for name, text in TINY.items():
        (project / "kernel" / name).write_text(text)
    return project


@pytest.fixture
def script(run, tmp_path):
    """Run a script with load() of FORKED; returns what it has printed, from JSON."""

    def script(code, *arguments, root, drop=(), **env):
        env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "jit cache")} | CPU_ONLY | env
        done = run("-c", FORKED + textwrap.dedent(code), *arguments, root=root, drop=drop, **env)
        return json.loads(done.stdout.splitlines()[-1]) | {"stderr": done.stderr}

    return script


@pytest.mark.parametrize(
    "compiler", ["jit", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("setup", "cmake"))]
)
def test_follows_the_sources(compiler, tiny, script, tmp_path):
    """A killed build and what it leaves; two processes at once; a mistake; an edited header; --rebuild."""
    slow = tmp_path / "c++"  # waits at one file, while `slow` exists
    slow.write_text(f"""#!/bin/sh
        case "$*" in *add2_cpu.cpp*) [ -f "{tmp_path}/slow" ] && touch "{tmp_path}/begun" && sleep 100;; esac
        exec c++ "$@" """)
    slow.chmod(0o755)
    code = """
        compiler, folder = sys.argv[1], Path(sys.argv[2])
        found = {}
        (folder / "slow").touch()
        child, out = start(compiler)
        while not (folder / "begun").exists(): time.sleep(0.01)
        os.killpg(child, signal.SIGKILL)
        end(child, out)
        (folder / "slow").unlink()
        if compiler == "jit":  # torch 2.15 leaves it also after a build that succeeded
            (folder / "jit cache/add2/lock").touch()
        both = [start(compiler), start(compiler)]
        found["at once"] = [end(*each) for each in both]
        library = Path(found["at once"][0])
        source, header = Path("kernel/add2_cpu.cpp"), Path("include/add2.h")
        source.write_text("int broken = no_such_name;")
        found["broken"] = load(compiler)
        source.write_text('#include "add2.h"')
        header.write_text(header.read_text() + sys.argv[3])
        before = has(library, "marked_by_a_test")
        found["header"] = [before, has(load(compiler), "marked_by_a_test")]
        times = [library.stat().st_mtime_ns]
        for rebuild in (False, True):
            load(compiler, rebuild)
            times.append(library.stat().st_mtime_ns)
        found["times"] = times
        print(json.dumps(found))
    """
    found = script(code, compiler, tmp_path, MARK, root=tiny, CXX=str(slow))
    left = {
        "jit": tmp_path / "jit cache/add2/add2.so",
        "setup": tiny / "add2/_C.abi3.so",
        "cmake": tiny / "build/libadd2.so",
    }
    assert found["at once"] == [str(left[compiler])] * 2
    assert "no_such_name" in found["broken"]
    assert found["header"] == [False, True]
    first, again, rebuilt = found["times"]
    assert (first == again) == (compiler != "setup")  # setuptools always links
    assert rebuilt != again
    assert " -c " in found["stderr"]  # --rebuild shows the commands
    assert "-shared" in found["stderr"]


def test_two_clones(tiny, script, tmp_path):
    """torch's load() keeps one folder for a name: each clone gets its own code, whatever the other one has built."""
    other = shutil.copytree(tiny, tmp_path / "other")
    code = "library = load('jit'); print(json.dumps({'marked': has(library, 'marked_by_a_test')}))"
    with (other / "include/add2.h").open("a") as header:
        header.write(MARK)
    assert [script(code, root=root)["marked"] for root in (tiny, other, tiny)] == [False, True, False]


def test_a_tree_of_the_users(tiny, script):
    """`cmake -S . -B build` by hand: load() goes on in the same tree, with its generator and its build type."""
    options = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DADD2_WITH_CUDA=OFF"]
    env = os.environ | {"PATH": toolchain.tool_path()}
    for command in (["cmake", "-S", ".", "-B", "build", *options], ["cmake", "--build", "build"]):
        subprocess.run(command, cwd=tiny, env=env, check=True, capture_output=True)
    before = (tiny / "build/libadd2.so").stat().st_mtime_ns
    found = script("print(json.dumps({'library': load('cmake')}))", root=tiny)
    assert found["library"] == str(tiny / "build/libadd2.so")
    assert (tiny / "build/libadd2.so").stat().st_mtime_ns == before


def test_environment_with_a_space_in_its_path(tiny, script, tmp_path):
    """And it is not activated: Python is called by its path, and its tools are not on PATH."""
    site = tmp_path / "my venv"
    site.mkdir()
    (site / "torch").symlink_to(Path(torch.__file__).parent)
    (tmp_path / "bin").mkdir()
    for tool in ("c++", "g++", "cc", "cmake", "make", "gmake", "as", "ld", "ar", "which"):
        if found := shutil.which(tool):
            (tmp_path / "bin" / tool).symlink_to(found)
    code = "print(json.dumps({each: load(each) for each in ('jit', 'setup', 'cmake')} | {'torch': torch.__file__}))"
    found = script(code, root=tiny, PYTHONPATH=str(site), PATH=str(tmp_path / "bin"))
    assert found["torch"].startswith(str(site))
    assert [found[each][-3:] for each in COMPILERS] == [".so"] * 3, found


@pytest.fixture
def nvcc():
    if toolchain.find_nvcc() is None:
        pytest.skip("needs a CUDA build of torch, and nvcc")
    return toolchain.cuda_root(toolchain.find_nvcc()) / "bin" / "nvcc"


def test_another_list_of_gpus_and_nvcc_behind_a_script(tiny, script, tmp_path, nvcc):
    """A changed TORCH_CUDA_ARCH_LIST compiles again; nvcc on PATH is a script in a folder where no toolkit is."""
    wrapper = tmp_path / "bin" / "nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec "{nvcc}" "$@"\n')
    wrapper.chmod(0o755)
    code = """
        def code(compiler, gpu):
            library = load(compiler, TORCH_CUDA_ARCH_LIST=gpu)
            return Path(library).read_bytes() if has(library, "launch_add2_cuda") else None

        print(json.dumps({each: code(each, "7.5") != code(each, "9.0") for each in ("jit", "setup", "cmake")}))
    """
    env = {"PATH": f"{wrapper.parent}:{os.environ['PATH']}", "ADD2_WITH_CUDA": "1"}
    found = script(code, root=tiny, drop=("CUDA_HOME", "CUDA_PATH"), **env)
    assert [found[each] for each in COMPILERS] == [True] * 3


@pytest.mark.thorough
@pytest.mark.parametrize("release", sorted({"13.0", torch.version.cuda or "13.0"}))
def test_nvcc_from_pypi(release, tiny, script, tmp_path, nvcc):
    """No toolkit is installed; the command that the message names installs one that does, for all builds."""
    if torch.version.cuda < "13":
        pytest.skip("the wheels of CUDA 12 are no toolkit")
    packages = [
        word.strip('"').replace(torch.version.cuda, release) for word in toolchain.nvcc_cure().split("`")[1].split()[4:]
    ]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path / "site", *packages]
    if subprocess.run(pip, capture_output=True, check=False).returncode:
        pytest.skip("needs a package index")
    [home] = (tmp_path / "site").glob("nvidia/cu*")
    code = """
        kernels = [has(load(compiler), "launch_add2_cuda") for compiler in ("jit", "setup", "cmake")]
        print(json.dumps({"nvcc": str(build.toolchain.find_nvcc()), "kernels": kernels}))
    """
    env = {"PYTHONPATH": f"{tmp_path / 'site'}:{Path(torch.__file__).parent.parent}", "ADD2_WITH_CUDA": "1"}
    found = script(code, root=tiny, drop=("CUDA_HOME", "CUDA_PATH"), **env)
    assert found["nvcc"] == str(home / "bin" / "nvcc")
    assert found["kernels"] == [True] * 3


@pytest.mark.thorough
def test_torchrun(run, tmp_path):
    """Two processes that torchrun starts at the same moment, and no library yet."""
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\nfrom lab import build\nbuild.load('jit')\nimport add2\n"
        "print(add2.add2(torch.ones(2), torch.ones(2)))\n"
    )
    env = {"PYTHONPATH": str(ROOT), "TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")} | CPU_ONLY
    done = run("-m", "torch.distributed.run", "--nproc-per-node", "2", program, **env)
    assert done.stdout.count("tensor([2., 2.])") == 2


@pytest.mark.thorough
@pytest.mark.parametrize("compiler", ["setup", "cmake"])
def test_operator(compiler, project, run):
    """The tests in tests/operator that the flags of a build can change (gradients and torch.compile are Python's)."""
    names = ("values", "checks", "cuda", "kernels")
    tests = [path for name in names if (path := project / "tests" / "operator" / f"test_{name}.py").exists()]
    run(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--all",
        *tests,
        "--build",
        compiler,
        root=project,
        PYTHONPATH=str(project),
    )


@pytest.mark.thorough
def test_pybind11():
    """The classic binding: values, and a check."""
    module = build.load("pybind11").module
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        a, b, c = torch.randn(3, 1003, device=device)
        module.torch_launch_add2(c, a, b, 1003)
        assert torch.equal(c, a + b)
        assert torch.equal(module.forward(a, b), a + b)
        with pytest.raises(RuntimeError):
            module.torch_launch_add2(c, a, b, 1004)
