"""The three builds, from the outside: they work wherever the project lies, and fail with a message."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
COMPILERS = ("jit", "setup", "cmake")
LOAD = """
import json, sys, torch
from lab.build import load
build = load(sys.argv[1])
import add2
x = torch.arange(7.0)
assert torch.equal(add2.add2(x, x), 2 * x)
print(json.dumps({"seconds": build.seconds, "cached": build.cached, "library": str(build.library)}))
"""
QUICK = ("--device", "cpu", "--sizes", "1000")


@pytest.fixture(scope="module")
def operator_tests():
    """Of the tests in tests/operator, which all run with jit in this process, those that the flags of a build can
    change (gradients and torch.compile are Python's), with the other builds: both at the same time."""
    files = [f"tests/operator/test_{name}.py" for name in ("values", "checks", "cuda", "kernels")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "--build"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    started = {build: subprocess.Popen([*command, build], cwd=ROOT, **pipes) for build in ("setup", "cmake")}
    yield started
    for process in started.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize("build", ["setup", "cmake"])
def test_operator(build, operator_tests):
    process = operator_tests[build]
    output, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, output


@pytest.mark.parametrize("build", COMPILERS)
def test_from_nothing_and_again(build, project, run, tmp_path):
    """In a folder with spaces, from another working directory; the second time nothing is built."""
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")}
    first = run("time.py", "--compiler", build, *QUICK, root=project, cwd=tmp_path, **env)
    assert "built and loaded" in first.stdout
    assert "c++ " in first.stderr or "g++ " in first.stderr  # the commands are shown
    second = run("time.py", "--compiler", build, *QUICK, root=project, cwd=tmp_path, **env)
    assert "loaded, built before" in second.stdout
    assert "c++ " not in second.stderr
    left = {"jit": "", "setup": "add2/_C.abi3.so", "cmake": "build/libadd2.so"}[build]
    assert not left or (project / left).exists()


@pytest.mark.thorough
@pytest.mark.parametrize("build", COMPILERS)
def test_failed_compilation(build, project, run, tmp_path):
    """The first errors and where the log is, exit status 1; after the mistake is mended it builds."""
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")}
    source = project / "kernel" / "add2_cpu.cpp"
    good = source.read_text()
    source.write_text(good + "\nint broken = no_such_name;\n")
    for _ in range(2):
        failed = run("time.py", "--compiler", build, *QUICK, root=project, status=1, **env)
        assert "no_such_name" in failed.stderr
        log = Path(failed.stderr.split("The whole log: ")[1].strip())
        assert "no_such_name" in log.read_text()
    source.write_text(good)
    run("time.py", "--compiler", build, *QUICK, root=project, **env)


@pytest.mark.thorough
@pytest.mark.parametrize("build", ["setup", "cmake"])
def test_an_edit_compiles_what_depends_on_it(build, project, run, tmp_path):
    """One source: that one alone. A header: all that include it. (jit has a new folder, and compiles all.)"""
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "ADD2_WITH_CUDA": "0"}
    run("-c", LOAD, build, root=project, **env)
    for file, dependants in (("kernel/add2_cpu.cpp", 1), ("include/add2.h", 2)):
        (project / file).write_text((project / file).read_text() + "// edited\n")
        again = run("-c", LOAD, build, root=project, **env)
        assert not json.loads(again.stdout)["cached"]
        log = (project / "build" / f"{build}-dispatcher.log").read_text()
        compiled = [line for line in log.splitlines() if " -c " in line and "c++" in line]
        assert len(compiled) == dependants, log
        shown = run("-m", "lab.build", "commands", "--compiler", build, root=project, **env).stdout.splitlines()
        assert sum(" -c " in line for line in shown) == 2  # those of the library that is there
        assert "-shared" in shown[-1]


@pytest.mark.thorough
@pytest.mark.parametrize("build", ["jit", "cmake"])
def test_rebuild_commands_clean(build, project, run, tmp_path):
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "ADD2_WITH_CUDA": "0"}
    commands = ("-m", "lab.build", "commands", "--compiler", build)
    assert f"time.py --compiler {build}" in run(*commands, root=project, status=1, **env).stderr
    run("time.py", "--compiler", build, *QUICK, root=project, **env)
    shown = run(*commands, root=project, **env).stdout.splitlines()
    assert len(shown) == 3
    assert sum(" -c " in line for line in shown) == 2
    assert "-shared" in shown[-1]
    assert "..." in shown[0]
    assert "..." not in run(*commands, "--full", root=project, **env).stdout
    again = run("time.py", "--compiler", build, "--rebuild", *QUICK, root=project, **env)
    assert "built and loaded" in again.stdout
    assert sorted(run(*commands, root=project, **env).stdout.splitlines()) == sorted(shown)  # in any order
    removed = run("-m", "lab.build", "clean", root=project, **env).stdout
    assert "removed" in removed
    assert not list((tmp_path / "cache").glob("*"))
    assert not (project / "build").exists()
    assert not list((project / "add2").glob("*.so"))


@pytest.mark.parametrize("build", COMPILERS)
def test_warm_start_starts_no_process(build, run):
    """Neither compiler nor ninja: the library is loaded directly."""
    run("-c", LOAD, build)
    watch = """
import sys
def hook(event, _):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.system", "os.exec", "os.fork"): print("started", event)
import torch
sys.addaudithook(hook)
"""
    done = run("-c", watch + LOAD, build)
    assert "started" not in done.stdout
    assert json.loads(done.stdout)["cached"]


@pytest.mark.thorough
@pytest.mark.parametrize("build", ["setup", "cmake"])
def test_killed_while_building(build, project, run, tmp_path):
    """The builder alone is killed: what it has started goes on, and must not get into the next build."""
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")}
    started = subprocess.Popen(
        [sys.executable, "-c", LOAD, build],
        cwd=project,
        env=os.environ | env,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "building" in started.stderr.readline()
    time.sleep(0.3)
    started.kill()
    started.wait()
    assert not json.loads(run("-c", LOAD, build, root=project, **env).stdout)["cached"]


KILLS = """
import os, random, signal, sys, time, torch
from lab import build
from lab.build import cache
random.seed(0)
killed = 0
for _ in range(50):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        build.load("jit")
        os._exit(0)
    time.sleep(random.uniform(0, float(sys.argv[1])))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    killed += os.WIFSIGNALED(status)
    if not os.WIFSIGNALED(status):
        assert status == 0
        cache.clean()  # it was in time: the next one shall build again
print("killed", killed)
"""


@pytest.mark.thorough
def test_killed_at_random_moments(project, run, tmp_path):
    """50 builders, each killed at some moment from its start to a little after its end; the next one always builds."""
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "ADD2_WITH_CUDA": "0"}
    source = project / "lab" / "build" / "builder.py"
    source.write_text(source.read_text().replace('"-O3"', '"-O0"'))  # sooner compiled: all phases come up
    done = json.loads(run("-c", LOAD, "jit", root=project, **env).stdout)
    run("-m", "lab.build", "clean", root=project, **env)
    killed = run("-c", KILLS, str(1.1 * done["seconds"]), root=project, **env).stdout
    assert int(killed.split()[-1]) >= 25
    after = run("time.py", *QUICK, root=project, **env)
    assert "torch_launch_add2" in after.stdout  # checked against torch before it was timed


@pytest.mark.thorough
def test_edited_while_building(project, run, tmp_path):
    """What was compiled may have the edit in it, or not; so it is not taken for either."""
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "ADD2_WITH_CUDA": "0"}
    code = """
import pathlib, torch
from lab.build import BuildError, build, builder
cmake = builder.cmake
def cmake_and_edit(*arguments, **options):
    cmake(*arguments, **options)
    with pathlib.Path("kernel/add2_checks.h").open("a") as file: file.write("// edited")
builder.cmake = cmake_and_edit
try: build("cmake")
except BuildError as error: print(error)
builder.cmake = cmake
print(build("cmake").cached)
"""
    edited, cached = run("-c", code, root=project, **env).stdout.splitlines()
    assert "edited while" in edited
    assert cached == "False"


@pytest.mark.thorough
def test_built_by_hand_with_other_options(project, run, tmp_path):
    """cmake called by hand has left a Debug library: it is not what `--compiler cmake` means."""
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "ADD2_WITH_CUDA": "0"}
    run("-c", LOAD, "cmake", root=project, **env)
    for step in (("-S", ".", "-B", "build", "-DCMAKE_BUILD_TYPE=Debug"), ("--build", "build")):
        subprocess.run(["cmake", *step], cwd=project, env=os.environ | env, check=True, capture_output=True)
    again = run("-c", LOAD, "cmake", root=project, **env)
    assert not json.loads(again.stdout)["cached"]
    assert again.stderr.count("-O3") == 3


@pytest.mark.thorough
def test_locks_left_by_hand(project, run, tmp_path):
    """Files where this and torch's own locks lie, in every folder that a build uses: nobody waits for them."""
    cache = tmp_path / "cache"
    env = {"TORCH_EXTENSIONS_DIR": str(cache), "ADD2_WITH_CUDA": "0"}
    library = Path(json.loads(run("-c", LOAD, "jit", root=project, **env).stdout)["library"])
    folder = library.parent
    run("-m", "lab.build", "clean", root=project, **env)
    unfinished = folder.with_name(folder.name + ".unfinished-of-yesterday")
    unfinished.mkdir(parents=True)
    for lock in (folder.with_suffix(".lock"), unfinished / "lock", cache / "lock"):
        lock.write_text("1\n")
    assert not json.loads(run("-c", LOAD, "jit", root=project, **env).stdout)["cached"]


@pytest.mark.thorough
def test_second_build_in_one_process(project, run, tmp_path):
    """As in a notebook: a build fails, the source is mended, and the next load() of the same process succeeds."""
    source = project / "kernel" / "add2_cpu.cpp"
    code = f"""
import pathlib, torch
from lab import build
source = pathlib.Path({str(source)!r})
good = source.read_text()
source.write_text(good + "int broken = no_such_name;")
try: build.load("jit")
except build.BuildError: source.write_text(good + "// mended")
assert build.load("jit").library.exists()
x = torch.ones(3)
assert torch.ops.add2.add2(x, x).tolist() == [2, 2, 2]
print("done")
"""
    assert run("-c", code, root=project, TORCH_EXTENSIONS_DIR=str(tmp_path / "cache")).stdout == "done\n"


@pytest.mark.thorough
def test_start_together_build_once(project, tmp_path):
    env = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", LOAD, "jit"]
    processes = [subprocess.Popen(command, cwd=project, env=env, stdout=subprocess.PIPE, text=True) for _ in range(16)]
    built = [json.loads(process.communicate()[0])["cached"] for process in processes]
    assert sorted(built) == [False] + [True] * 15


def links_to_tools(folder: Path, without: tuple[str, ...]) -> str:
    """A PATH with everything on it but some tools."""
    folder.mkdir()
    for place in reversed(os.environ["PATH"].split(os.pathsep)):
        for tool in Path(place).glob("*"):
            if tool.name not in without and tool.is_file():
                link = folder / tool.name
                link.unlink(missing_ok=True)
                link.symlink_to(tool)
    return str(folder)


@pytest.mark.thorough
@pytest.mark.parametrize("build", ["jit", "setup"])
def test_environment_that_is_not_activated(build, project, run, tmp_path):
    """Python is called by its path; ninja is installed in its environment, but not on PATH."""
    path = links_to_tools(tmp_path / "bin", without=("ninja", "python", "python3"))
    run("-c", LOAD, build, root=project, PATH=path, TORCH_EXTENSIONS_DIR=str(tmp_path / "cache"))


@pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
@pytest.mark.parametrize("build", COMPILERS)
def test_nvcc_behind_a_wrapper(build, project, run, tmp_path):
    """nvcc on PATH is a script in a folder where no toolkit is."""
    from lab.build import toolchain

    if toolchain.find_nvcc() is None:
        pytest.skip("needs nvcc")
    path = links_to_tools(tmp_path / "bin", without=("nvcc",))
    wrapper = Path(path, "nvcc")
    wrapper.write_text(f'#!/bin/sh\nexec "{toolchain.cuda_root(toolchain.find_nvcc())}/bin/nvcc" "$@"\n')
    wrapper.chmod(0o755)
    env = {"PATH": path, "TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")}
    done = run("-c", LOAD, build, root=project, drop=("CUDA_HOME", "CUDA_PATH"), **env)
    assert "for CUDA" in done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("build", COMPILERS)
def test_cpu_part_alone(build, project, run, tmp_path):
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "ADD2_WITH_CUDA": "0"}
    done = run("time.py", "--compiler", build, *QUICK, root=project, **env)
    assert "for the CPU alone" in done.stderr
    if torch.cuda.is_available():
        refused = run("time.py", "--compiler", build, "--device", "cuda", root=project, status=1, **env)
        assert "no CUDA code" in refused.stderr
        assert "unset it" in refused.stderr
        fallen_back = run("time.py", "--compiler", build, "--sizes", "1000", root=project, **env)
        assert "using the CPU, not the GPU" in fallen_back.stderr


@pytest.mark.parametrize("build", ["jit"])
def test_no_compiler(build, project, run, tmp_path):
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "CXX": "no-such-compiler"}
    done = run("time.py", "--compiler", build, *QUICK, root=project, status=1, **env)
    assert "no-such-compiler is not installed" in done.stderr
    assert "apt-get install g++" in done.stderr


def test_no_cmake(project, run, tmp_path):
    path = links_to_tools(tmp_path / "bin", without=("cmake",))
    if shutil.which("cmake", path=str(Path(sys.executable).parent)):
        pytest.skip("cmake is installed in this environment")
    done = run("time.py", "--compiler", "cmake", *QUICK, root=project, status=1, PATH=path)
    assert "pip install cmake" in done.stderr


def test_registered_once(run):
    code = LOAD + "\nfrom lab.build import BuildError\ntry: load('cmake')\nexcept BuildError as error: print(error)"
    assert "only once" in run("-c", code, "jit").stdout


def test_import_without_a_build(project, run):
    code = "try: import add2\nexcept ImportError as error: print(error)"
    assert "pip install --no-build-isolation" in run("-c", code, root=project).stdout


def test_installed(project, tmp_path, run):
    """`pip install`: `import add2` from anywhere, nothing else loaded before."""
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--target", site]
    subprocess.run([*command, project], check=True, capture_output=True, text=True)
    code = "import add2, torch; x = torch.ones(3); print(add2.add2(x, x).tolist(), add2.__file__)"
    done = run("-c", code, cwd=tmp_path, PYTHONPATH=str(site))
    assert done.stdout.startswith("[2.0, 2.0, 2.0]")
    assert str(site) in done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("build", ["jit", "setup"])
def test_pybind11(build, run, tmp_path):
    file = tmp_path / "times.json"
    run("time.py", "--compiler", build, "--binding", "pybind11", *QUICK, "--json", file)
    content = json.loads(file.read_text())
    assert [row["binding"] for row in content["build"]] == ["dispatcher", "pybind11"]
    assert "pybind11" in [row["call"] for row in content["results"]]


PYBIND11 = """
import sys, torch
from lab import build
module = build.load(sys.argv[1], "pybind11").module
for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        a, b, c = torch.randn(3, 1003, device=device, dtype=dtype)
        module.torch_launch_add2(c, a, b, 1003)
        assert torch.equal(c, a + b)
        assert torch.equal(module.forward(a, b), a + b)
        assert all(torch.equal(grad, a) for grad in module.backward(a))
    def refused(words, kind, *arguments, call=module.torch_launch_add2):
        try: call(*arguments)
        except kind as error: assert words in str(error), error
        else: raise AssertionError(words)
    refused("n is 1004", RuntimeError, c, a, b, 1004)
    refused("a has dtype Float", RuntimeError, c, a.float(), b, 3)
    refused("c shares memory", RuntimeError, c[1:], c[:-1], b, 3)
    refused("dense", RuntimeError, c, a.to_sparse(), b, 3)
    refused("incompatible", TypeError, c, None, b, 3)
    refused("incompatible", TypeError, c, 1.0, b, 3)
    refused("incompatible", TypeError, c, a, b, 1.5)
    refused("dense", RuntimeError, c, a.to("meta"), b, 3)
    refused("requires grad", RuntimeError, c.float().requires_grad_(), a.float(), b.float(), 3)
    refused("requires grad", RuntimeError, c.float(), a.float().requires_grad_(), b.float(), 3)
    refused("n is -1", RuntimeError, c, a, b, -1)
    refused("not contiguous", RuntimeError, c[::2], a, b, 3)
    assert torch.equal(module.forward(a, b), a + b)
    refused("does not broadcast", RuntimeError, a, b[1:], call=module.forward)
print("done")
"""


@pytest.mark.parametrize("build", ["jit", "setup"])
def test_pybind11_values_and_checks(build, run):
    assert run("-c", PYBIND11, build).stdout == "done\n"
