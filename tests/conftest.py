"""Options and fixtures that all tests share.

python3 -m pytest          # the short run: the operator with one build, each build once, both programs, the pages
python3 -m pytest --all    # all but what is marked `slow`; a test that is named runs, too: FILE::TEST
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jit_cache
import pytest
import torch
from filelock import FileLock

from lab import toolchain
from lab.build import COMPILERS, leftovers, load

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run every test, also those marked `thorough`")
    parser.addoption("--library", help="a ready library that tests/operator uses instead of a build")
    parser.addoption("--wheel", help="a ready wheel that tests/test_wheel.py examines instead of building one")
    parser.addoption("--build", choices=COMPILERS, default="jit", help="build that tests/operator uses")


def pytest_configure(config):
    """Many processes run at once: a few threads each, which sleep while they wait. Workers, and a run of pytest inside
    a test, build in the folder that the first process has prepared."""
    threads = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    # Each process would compile and load a library for each kind of vector instructions that this CPU has.
    os.environ |= threads | {"TORCHINDUCTOR_VEC_ISA_OK": "1"} | os.environ
    config.option.loadscopereorder = False  # xdist then keeps the order of in_order()
    if "ADD2_TEST_BUILDS" in os.environ or not hasattr(config, "cache"):  # the latter with -p no:cacheprovider
        return
    folder = config.cache.mkdir("builds") / jit_cache.place()
    jit_cache.prepare(folder, jit_cache.digests(*(ROOT / name for name in ("include", "kernel", "examples"))))
    os.environ |= {"TORCH_EXTENSIONS_DIR": str(folder), "ADD2_TEST_BUILDS": str(folder)}
    os.environ["EMULATOR_CACHE"] = str(jit_cache.keep_emulator(folder))
    config.add_cleanup(lambda: jit_cache.finish(folder))


def pytest_collection_modifyitems(config, items):
    """Without --all, leave out the tests marked `thorough`, except those that are named one by one. With --all, those
    marked `anywhere` where torch has CUDA and no GPU is found: CI runs them with a torch without CUDA. And without
    --all, where a GPU is, those marked `inductor` for the CPU."""
    if any("::" in argument for argument in config.args):
        return
    has_gpu, is_short = torch.cuda.is_available(), not config.getoption("--all")
    marks = {"thorough": is_short, "anywhere": torch.version.cuda and not has_gpu and not is_short}

    def is_left_out(item):
        is_on_cpu = hasattr(item, "callspec") and item.callspec.params.get("device") == "cpu"
        if has_gpu and is_short and is_on_cpu and item.get_closest_marker("inductor"):
            return True
        return any(is_out and item.get_closest_marker(mark) for mark, is_out in marks.items())

    left_out = [item for item in items if is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = in_order([item for item in items if item not in left_out])


def in_order(items):
    """By file or class, as xdist gives them to its workers. First those whose tests need a fork, before another test
    uses CUDA or starts autograd's threads, which do not survive it; then those with the most tests."""
    scopes = {}
    for item in items:
        scopes.setdefault(item.nodeid.partition("[")[0].rpartition("::")[0], []).append(item)
    forks = {scope: sum("forks" in item.fixturenames for item in found) for scope, found in scopes.items()}
    order = sorted(scopes, key=lambda scope: (-forks[scope] / len(scopes[scope]), -len(scopes[scope])))
    return [item for scope in order for item in sorted(scopes[scope], key=lambda x: "forks" not in x.fixturenames)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """More than eight workers only slow each other down. One test, and a run of pytest inside a test, need none."""
    if "PYTEST_XDIST_WORKER" in os.environ or any("::" in argument for argument in config.args):
        return 0
    return min(8, os.cpu_count() or 1)


@pytest.fixture(scope="session", autouse=True)
def own_jit_cache(tmp_path_factory):
    """Tests leave the user's caches alone. Workers and nested runs of pytest share those of this run."""
    if "ADD2_TEST_CACHE" not in os.environ:
        base = tmp_path_factory.getbasetemp()
        folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "jit cache"  # a home may have a space
        folder.mkdir(exist_ok=True)
        os.environ["ADD2_TEST_CACHE"] = str(folder)
        if "ADD2_TEST_BUILDS" not in os.environ:  # -p no:cacheprovider
            os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
        # torch.compile's cache does not notice that an operator's gradient has changed (pytorch issue 144344).
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder.with_name("inductor"))


@pytest.fixture(scope="session")
def once(own_jit_cache):
    """The path of a folder that one of the workers makes, by make(folder), for all of them."""

    def once(name, make):
        folder = Path(os.environ["ADD2_TEST_CACHE"]).with_name(name)
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                make(folder)
        return folder

    return once


@pytest.fixture(params=["cpu"] + ["cuda"] * torch.cuda.is_available())
def device(request):
    return request.param


@pytest.fixture(scope="session")
def cuda():
    return "cuda" if torch.cuda.is_available() else pytest.skip("needs a GPU")


@pytest.fixture(scope="session")
def nvcc():
    return toolchain.find_nvcc() or pytest.skip("needs a CUDA build of torch, and nvcc")


@pytest.fixture(scope="session")
def build(request, own_jit_cache):
    library, compiler = request.config.getoption("--library"), request.config.getoption("--build")
    return load(compiler, library=library and Path(library))


@pytest.fixture(scope="session")
def add2(build):
    """The module. A test cannot import it at the head of its file, before the build is loaded."""
    return importlib.import_module("add2")


@pytest.fixture(scope="session")
def lesson(own_jit_cache):
    """Import a module of examples/ by its folder and name; its library is built and loaded."""
    os.environ["PATH"] = toolchain.tool_path()  # ninja, for programs that call torch's load() by themselves

    def lesson(folder, name=None):
        sys.path.insert(0, str(ROOT / "examples" / folder))
        for same in ("bench", "ladder"):  # other lessons have modules of these names
            sys.modules.pop(same, None)
        module = importlib.import_module(name or folder)
        if hasattr(module, "build"):
            module.build()
        return module

    return lesson


@pytest.fixture(scope="session")
def run(tmp_path_factory, own_jit_cache):
    """Run a program of the project (or any Python arguments) in a process of its own; returns what it printed. status:
    the right one; None allows any, and a traceback. Another package called lab is on the path: PyPI has one."""
    foreign = tmp_path_factory.mktemp("foreign")
    (foreign / "lab").mkdir()
    (foreign / "lab/__init__.py").write_text("raise SystemExit('this is not the lab of the project')")
    path = os.pathsep.join([str(foreign), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    outputs = foreign / "stdout", foreign / "stderr"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}

    def run(*arguments, root=ROOT, cwd=None, status=0, drop=(), **env):
        first = root / arguments[0] if str(arguments[0]).endswith(".py") else arguments[0]
        environment = {name: value for name, value in os.environ.items() if name not in drop}
        environment |= {"PYTHONPATH": path}
        if root != ROOT:  # a copy has other paths: ninja would build everything again, and once more for ROOT
            environment["TORCH_EXTENSIONS_DIR"] = os.environ["ADD2_TEST_CACHE"]
        environment |= env
        job = [[*map(str, [first, *arguments[1:]])], str(cwd or root), environment, *map(str, outputs)]
        print(json.dumps(job), file=server.stdin, flush=True)
        found, (out, err) = int(server.stdout.readline()), (output.read_text() for output in outputs)
        assert status in (None, found), f"exit status {found}\n{out}\n{err}"
        assert status is None or "Traceback" not in err, err
        return SimpleNamespace(stdout=out, stderr=err)

    with subprocess.Popen([sys.executable, ROOT / "tests" / "programs.py"], **pipes) as server:
        yield run


@pytest.fixture
def project(tmp_path):
    """A copy of the project, without what builds have left, in a folder whose path has spaces."""
    return shutil.copytree(ROOT, tmp_path / "a copy of it", ignore=leftovers)


@pytest.fixture(scope="session")
def emulator_cache(own_jit_cache):
    """The folder of lab/emulator's libraries, which all workers share."""
    fresh = Path(os.environ["ADD2_TEST_CACHE"]).with_name("emulator")  # -p no:cacheprovider
    return Path(os.environ.setdefault("EMULATOR_CACHE", str(fresh)))


@pytest.fixture
def forks():
    """Skips where earlier tests have started autograd's threads: torch then refuses backward() in a fork."""
    from lab.referee.processes import autograd_survives_a_fork  # not for the tests of a copied project

    if not autograd_survives_a_fork():
        pytest.skip("this process has started autograd's threads, which do not survive a fork")
