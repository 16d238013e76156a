"""The three builds, from the outside: they work wherever the project lies, build again what changed, and fail with a
message.

Most tests share the builds in one copy of the project, and ask a process several things: importing torch takes seconds.
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

from lab.build import cache, toolchain

ROOT = Path(__file__).resolve().parent.parent
COMPILERS = ("jit", "setup", "cmake")
QUICK = ("--device", "cpu", "--sizes", "1000")
CPU_ONLY = {"ADD2_WITH_CUDA": "0"}  # sooner compiled
LOAD = """
import json, sys, torch
events = []
sys.addaudithook(lambda event, _: events.append(event))
from lab.build import Failure, load
build = load(sys.argv[1])
started = sorted({"subprocess.Popen", "os.posix_spawn", "os.system", "os.exec", "os.fork"} & set(events))
import add2
x = torch.arange(7.0)
assert torch.equal(add2.add2(x, x), 2 * x)
try: load("cmake")
except Failure as error: twice = str(error)
print(json.dumps({"seconds": build.seconds, "cached": build.cached, "library": str(build.library), "started": started,
                  "twice": twice}))
"""


@pytest.fixture(scope="module")
def copy_of_it(tmp_path_factory):
    """A copy of the project in which each build is made once, in a folder with spaces; and its environment."""
    folder = tmp_path_factory.mktemp("shared") / "a copy of it"
    shutil.copytree(ROOT, folder, ignore=cache.leftovers)
    env = {"TORCH_EXTENSIONS_DIR": str(folder.with_name("a jit cache")), "PYTHONPATH": str(folder)}
    return folder, env | {"ADD2_TEST_CACHE": env["TORCH_EXTENSIONS_DIR"]}


FORKED = """
import json, os, torch
from pathlib import Path
from lab import build

def forked(function, *arguments):
    # In a child, since torch's jit build also loads the library, and an operator can be registered only once.
    out, to_parent = os.pipe()
    if os.fork() == 0:
        try: os.write(to_parent, json.dumps(function(*arguments)).encode())
        finally: os._exit(0)
    os.close(to_parent)
    os.wait()
    with os.fdopen(out) as file: return json.load(file)
"""


@pytest.fixture
def bookkeeping(project):
    """A copy of the project whose sources are next to nothing, so that a build takes no time to compile."""
    for number, name in enumerate(("add2.cpp", "add2_cpu.cpp")):
        (project / "kernel" / name).write_text(f'extern "C" int number_{number} = {number};\n')
    return project


@pytest.fixture
def script(bookkeeping, run, tmp_path):
    """Run a script in that copy, for the CPU only; returns what it has printed last, from JSON."""

    def script(code, *arguments, **env):
        code = FORKED + textwrap.dedent(code)
        env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")} | CPU_ONLY | env
        return json.loads(run("-c", code, *arguments, root=bookkeeping, **env).stdout.splitlines()[-1])

    return script


@pytest.mark.parametrize("build", COMPILERS)
def test_from_nothing_and_again(build, copy_of_it, run, tmp_path):
    """From another working directory; the second time neither compiler nor ninja is started. And an operator can be
    registered only once in a process."""
    folder, env = copy_of_it
    first = run("-c", LOAD, build, cwd=tmp_path, **env)
    found = json.loads(first.stdout)
    assert not found["cached"]
    assert " -c " in first.stderr  # the commands are shown
    assert "-shared" in first.stderr
    assert "only once" in found["twice"]
    left = {"jit": "", "setup": folder / "add2/_C.abi3.so", "cmake": folder / "build/libadd2.so"}[build]
    assert not left or Path(found["library"]) == left
    again = run("-c", LOAD, build, cwd=tmp_path, **env)
    found = json.loads(again.stdout)
    assert found["cached"]
    assert found["started"] == []
    assert again.stderr == ""


@pytest.mark.thorough
@pytest.mark.parametrize("build", ["setup", "cmake"])
def test_operator(build, copy_of_it, run, tmp_path):
    """Of the tests in tests/operator, which all run with jit in this process, those that the flags of a build can
    change (gradients and torch.compile are Python's), with the other builds."""
    folder, env = copy_of_it
    tests = [folder / "tests" / "operator" / f"test_{name}.py" for name in ("values", "checks", "cuda", "kernels")]
    tests = [path for path in tests if path.exists()]
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--all", *tests, "--build", build, root=folder, **env)


CHANGES = """
    import sys
    compiler, source, cached = sys.argv[1], Path("kernel/add2_cpu.cpp"), {}
    original, status = source.read_text(), source.stat()
    marker = 'extern "C" __attribute__((visibility("default"))) int put_in_by_a_test = 1;'

    def built():
        try: found = build.build(compiler)
        except build.Failure as error:
            log = Path(str(error).split("The whole log: ")[1].strip()).read_text()
            return [line for line in (str(error), log) if "no_such_name" in line]
        return [found.cached, b"put_in_by_a_test" in found.library.read_bytes()]

    def edit(text, name):
        source.write_text(text)
        cached[name] = forked(built)

    edit(original, "first")
    edit(original + "int broken = no_such_name;", "broken")
    edit(original + marker, "edited")
    source.write_text(original)
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))  # as `mv file~ file`, `cp -p` or `tar -x` would
    cached["put back"] = forked(built)
    for page in Path("lab").rglob("*.py"): page.write_text(page.read_text() + "# a comment")
    edit(original, "comment in lab")
    cached["left"] = [path.name for path in Path(os.environ["TORCH_EXTENSIONS_DIR"]).glob("add2-building-*")]
    print(json.dumps(cached))
"""


@pytest.mark.parametrize(
    "build",
    ["jit", pytest.param("setup", marks=pytest.mark.thorough), pytest.param("cmake", marks=pytest.mark.thorough)],
)
def test_content_decides(build, script):
    """A source whose content changed is compiled again, whatever its time; a failed build says why, leaves nothing that
    is taken for a library, and no folder; and what is no part of the build is no reason to build."""
    found = script(CHANGES, build)
    assert found["first"] == [False, False]
    assert len(found["broken"]) == 2  # in the message, and in the log
    assert found["edited"] == [False, True]
    assert found["put back"] == [True, False]  # the cache has a folder for each content
    assert found["comment in lab"] == [True, False]
    assert found["left"] == []


@pytest.mark.thorough
def test_reasons_to_build(script):
    """A header, a flag, another torch, --rebuild. What a killed build has left is removed, a user's file is not."""
    found = script("""
        def cached(rebuild=False): return forked(lambda: build.build("jit", rebuild=rebuild).cached)
        folder = Path(os.environ["TORCH_EXTENSIONS_DIR"])
        for name in ("add2-building-abcdefgh/build.json", "add2-building-thesis/lock", "lock"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        found = {"first": cached(), "again": cached(), "rebuild": cached(rebuild=True)}
        header = Path("include/add2.h")
        header.write_text(header.read_text() + "// edited")
        found["header"] = cached()
        os.environ["CXXFLAGS"] = "-g"
        found["flag"] = cached()
        torch.version.git_version = "another"
        found["torch"] = cached()
        print(json.dumps(found | {"left": [path.name for path in folder.glob("add2-building-*")]}))
    """)
    assert found.pop("again") is True
    assert found.pop("left") == ["add2-building-thesis"]
    assert set(found.values()) == {False}, found


@pytest.mark.thorough
@pytest.mark.parametrize("build", COMPILERS)
def test_edited_while_building_and_edited_back(build, script, tmp_path):
    """The library was made from B, and the source is A as before. So the build fails, and the next one builds A."""
    compiler = tmp_path / "c++"
    compiler.write_text(
        """#!/bin/sh
case "$*" in *" -c "*add2_cpu.cpp*)
    cp kernel/add2_cpu.cpp "$0.A"
    echo 'extern "C" __attribute__((visibility("default"))) int put_in_by_a_test = 1;' >> "$ROOT/kernel/add2_cpu.cpp"
    trap 'cp "$0.A" "$ROOT/kernel/add2_cpu.cpp"' EXIT;;
esac
c++ "$@"
""".replace("cp kernel", 'cp "$ROOT"/kernel')
    )
    compiler.chmod(0o755)
    code = """
        import sys
        os.environ |= {"ROOT": os.getcwd(), "CXX": sys.argv[2]}
        def built():
            try: build.build(sys.argv[1])
            except build.Failure as error: return str(error)
        found = [forked(built), Path("kernel/add2_cpu.cpp").read_text() == Path(sys.argv[2] + ".A").read_text()]
        Path(sys.argv[2]).write_text('#!/bin/sh\\nexec c++ "$@"\\n')
        os.utime(sys.argv[2], ns=(0, int(sys.argv[3])))  # in the key is its time, so this is the same compiler
        again = forked(lambda: (lambda each: [each.cached, str(each.library)])(build.build(sys.argv[1])))
        print(json.dumps([*found, again[0], b"put_in_by_a_test" in Path(again[1]).read_bytes()]))
    """
    error, is_back, cached, has_b = script(code, build, compiler, compiler.stat().st_mtime_ns)
    assert "edited while" in error
    assert is_back
    assert (cached, has_b) == (False, False)


@pytest.mark.thorough
def test_cmake_by_hand(script):
    """cmake called by hand has left a Debug library: it is not what `--compiler cmake` means."""
    found = script("""
        import subprocess
        library = build.build("cmake").library
        ours = library.read_bytes()
        for step in (("-S", ".", "-B", "build", "-DCMAKE_BUILD_TYPE=Debug"), ("--build", "build")):
            subprocess.run(["cmake", *step], check=True, capture_output=True)
        debug = library.read_bytes()
        again = build.build("cmake")
        print(json.dumps([ours == debug, again.cached, again.library.read_bytes() == ours]))
    """)
    assert found == [False, True, True]


@pytest.mark.thorough
@pytest.mark.parametrize("build", COMPILERS)
def test_commands(build, script):
    """A build prints the commands that ran, with the include folders counted; build.json has them whole."""
    found = script(
        """
        import contextlib, io, sys
        with contextlib.redirect_stderr(io.StringIO()) as said:
            build.build(sys.argv[1])
        record = build.last(sys.argv[1]).with_name("build.json").read_text()
        print(json.dumps([said.getvalue(), json.loads(record)["commands"]]))
        """,
        build,
    )
    shown = [line for line in found[0].splitlines() if line.startswith("  $ ")]
    assert [line[4:].split()[0] for line in shown] == [command.split()[0] for command in found[1]]
    assert [" -c " in command for command in found[1]] == [True, True, False]
    assert "-shared" in shown[-1]
    assert "..." in shown[0]
    assert "..." not in found[1][0]


def test_clean_removes_only_what_builds_have_made(project, tmp_path):
    """A user's folders with similar names, or with a file of the user's, and what a symbolic link leads to, stay.

    A closed pipe is no traceback.
    """
    jit, build = tmp_path / "cache", project / "build"
    users = ["add2-jit-0123456789abcdef", "add2-jit-1111111111111111"]
    users += ["add2-jit-2222222222222222", "add2-my-thesis"]
    for name in users:
        (jit / name).mkdir(parents=True)
        (jit / name / "thesis.tex").touch()
    (tmp_path / "elsewhere").mkdir()
    (jit / "add2-jit-fedcba9876543210").mkdir()
    for folder in (
        jit / "add2-jit-fedcba9876543210",
        jit / users[1],
        jit / "add2-my-thesis",
        tmp_path / "elsewhere",
    ):
        (folder / cache.RECORD).write_text('{"library": "add2.so", "bytes": 0, "commands": []}')  # the mark of a build
        (folder / "add2.so").touch()
    (jit / users[2] / "thesis.tex").unlink()
    (jit / users[2]).rmdir()
    (jit / users[2]).symlink_to(tmp_path / "elsewhere")
    build.mkdir()
    for file in (build / "libadd2.so", build / "notes", project / "add2" / "_C.abi3.so", project / "add2" / "mine.so"):
        file.touch()
    env = os.environ | {"TORCH_EXTENSIONS_DIR": str(jit)}
    command = [sys.executable, "-m", "lab.build", "clean"]
    closed = subprocess.Popen(command, cwd=project, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    closed.stdout.close()
    assert closed.stderr.read() == ""
    closed.wait()
    assert sorted(path.name for path in jit.iterdir() if path.is_dir()) == users
    assert (tmp_path / "elsewhere" / cache.RECORD).exists()
    assert [path.name for path in build.iterdir()] == ["notes"]
    assert sorted(path.name for path in (project / "add2").glob("*.so")) == ["mine.so"]


@pytest.mark.thorough
@pytest.mark.parametrize("build", ["setup", "cmake"])
def test_killed_while_building(build, script):
    """Only the builder is killed: what it has started goes on, and must not get into the next build."""
    code = """
        import signal, sys, time
        if (child := os.fork()) == 0:
            build.build(sys.argv[1])
        folder = Path(os.environ["TORCH_EXTENSIONS_DIR"])
        while not list(folder.glob("add2-building-*/?*/")): time.sleep(0.01)  # until the first command runs
        os.kill(child, signal.SIGKILL)
        os.wait()
        print(json.dumps([build.build(sys.argv[1]).cached, build.build(sys.argv[1]).cached]))
    """
    assert script(code, build) == [False, True]


@pytest.mark.thorough
def test_killed_at_random_moments(script):
    """50 builders, each killed at some moment from its start to a little after its end; the next one always builds."""
    killed, cached = script("""
        import random, signal, time
        from lab.build import cache
        random.seed(0)
        seconds = forked(lambda: build.build("jit").seconds)
        for _ in cache.clean(): pass
        killed = 0
        for _ in range(50):
            child = os.fork()
            if child == 0:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                build.build("jit")
                os._exit(0)
            time.sleep(random.uniform(0, 1.1 * seconds))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            killed += os.WIFSIGNALED(status)
            if not os.WIFSIGNALED(status):
                assert status == 0
                for _ in cache.clean(): pass  # it was in time: the next one shall build again
        forked(lambda: build.build("jit").cached)
        print(json.dumps([killed, forked(lambda: build.build("jit").cached)]))
    """)
    assert killed >= 25
    assert cached


@pytest.mark.thorough
def test_start_together_build_once(script):
    built = script("""
        children = []
        for _ in range(16):
            if (child := os.fork()) == 0:
                try: os._exit(10 + build.build("jit").cached)
                finally: os._exit(1)
            children.append(child)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
    """)
    assert sorted(built) == [10] + [11] * 15


@pytest.mark.thorough
def test_mended_in_the_same_process(project, run, tmp_path):
    """As in a notebook: a build fails, the source is mended, and the next load() of the same process succeeds."""
    code = """
import torch
from pathlib import Path
from lab import build
source = Path("kernel/add2_cpu.cpp")
good = source.read_text()
source.write_text(good + "int broken = no_such_name;")
try: build.load("jit")
except build.Failure: source.write_text(good)
build.load("jit")
x = torch.ones(3)
print(torch.ops.add2.add2(x, x).tolist())
try: build.build("jit", rebuild=True)
except build.Failure as error: print(error)
"""
    done = run("-c", code, root=project, TORCH_EXTENSIONS_DIR=str(tmp_path / "cache"), **CPU_ONLY)
    assert done.stdout.splitlines()[0] == "[2.0, 2.0, 2.0]"
    assert "use another process" in done.stdout


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
    run("-c", LOAD, build, root=project, PATH=path, TORCH_EXTENSIONS_DIR=str(tmp_path / "cache"), **CPU_ONLY)


@pytest.mark.thorough
@pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
@pytest.mark.parametrize("build", COMPILERS)
def test_nvcc_behind_a_wrapper(build, project, run, tmp_path):
    """nvcc on PATH is a script in a folder where no toolkit is."""
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
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("build", COMPILERS)
def test_only_the_cpu_part(build, project, run, tmp_path):
    """Where there is a GPU, but the build has no code for it."""
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")} | CPU_ONLY
    done = run("time.py", "--compiler", build, *QUICK, root=project, **env)
    assert "for only the CPU" in done.stderr
    refused = run("time.py", "--compiler", build, "--device", "cuda", root=project, status=1, **env)
    assert "no CUDA code" in refused.stderr
    assert "unset it" in refused.stderr
    fallen_back = run("time.py", "--compiler", build, "--sizes", "1000", root=project, **env)
    assert "using the CPU, not the GPU" in fallen_back.stderr


def test_refused_before_anything_is_compiled(script, tmp_path):
    """Machines that are not supported, and settings that will not do: one message each, from one process."""
    found = script(
        """
        import sys
        from lab.build import toolchain
        found = {}
        def refused(name, compiler="jit", **env):
            before = dict(os.environ)
            os.environ.update(env)
            toolchain.find_nvcc.cache_clear()
            try: build.build(compiler)
            except build.Failure as error: found[name] = str(error)
            os.environ.clear()
            os.environ.update(before)
        for compiler in ("jit", "setup", "cmake"):
            for jobs in ("0", "abc", "-1"): refused(f"MAX_JOBS {compiler} {jobs}", compiler, MAX_JOBS=jobs)
            for cxx in ("g++ -O1", "ccache g++", 'g++ "', " "): refused(f"CXX {compiler} {cxx}", compiler, CXX=cxx)
            refused(f"missing {compiler}", compiler, CXX="no-such-compiler")
        for character in '$:;"|{': refused(f"path {character}", TORCH_EXTENSIONS_DIR=f"{sys.argv[1]}/a{character}b")
        torch.version.cuda = None
        refused("cuda", ADD2_WITH_CUDA="1")
        home, Path.home = Path.home, classmethod(lambda cls: exec("raise RuntimeError"))
        refused("home", TORCH_EXTENSIONS_DIR="", XDG_CACHE_HOME="")
        Path.home = home
        torch.version.hip = "7.0"
        refused("hip")
        torch.version.hip = None
        for sys.platform in ("win32", "darwin"): refused(sys.platform)
        print(json.dumps(found))
        """,
        tmp_path,
    )
    assert len(found) == 3 * 8 + 6 + 5
    for name, message in found.items():
        assert len(message.splitlines()) == 1
        if name.startswith("MAX_JOBS"):
            assert "expected a number from 1 on" in message
        if name.startswith("CXX"):
            assert "expected the name of a compiler" in message
        if name.startswith("missing"):
            assert "no-such-compiler is not installed" in message
            assert "apt-get install g++" in message
        if name.startswith("path"):
            assert f"{name[-1]!r}" in message
    assert "pip install torch" in found["cuda"]
    assert "TORCH_EXTENSIONS_DIR" in found["home"]
    assert "ROCm" in found["hip"]
    assert "needs Linux" in found["win32"]
    assert "needs Linux" in found["darwin"]
    assert not list((tmp_path / "cache").glob("*/*.o"))


@pytest.mark.thorough
def test_setup_and_cmake_refuse_what_is_not_supported(run, tmp_path):
    """Called by hand, as pip and a user do it."""
    code = "import runpy, sys, torch; {}; sys.argv = ['setup.py', 'build_ext']; runpy.run_path('setup.py')"
    for change, word in (("torch.version.hip = '7.0'", "ROCm"), ("sys.platform = 'win32'", "win32")):
        done = run("-c", code.format(change), status=1)
        assert "add2 needs Linux, and a torch for CUDA or CPUs" in done.stderr
        assert word in done.stderr
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtorch_hip.so").touch()
    command = ["cmake", "-S", ROOT, "-B", tmp_path / "build", f"-DTORCH_DIR={tmp_path}"]
    env = os.environ | {"PATH": toolchain.tool_path()}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "add2 needs Linux, and a torch for CUDA or CPUs" in done.stderr.replace("\n  ", " ")


def test_no_compiler(run, tmp_path):
    """As a program tells it: one message, exit status 1."""
    env = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache"), "CXX": "no-such-compiler"}
    assert "no-such-compiler is not installed" in run("time.py", *QUICK, status=1, **env).stderr


def test_no_cmake(project, run, tmp_path):
    path = links_to_tools(tmp_path / "bin", without=("cmake",))
    if shutil.which("cmake", path=str(Path(sys.executable).parent)):
        pytest.skip("cmake is installed in this environment")
    done = run("time.py", "--compiler", "cmake", *QUICK, root=project, status=1, PATH=path)
    assert "pip install cmake" in done.stderr


def test_import_without_a_build(project, run):
    code = "try: import add2\nexcept ImportError as error: print(error)"
    assert "pip install --no-build-isolation" in run("-c", code, root=project).stdout


def test_other_library(run):
    """--library with a library that is none of ours."""
    code = """
import re, torch
from pathlib import Path
from lab.build import Failure, load
libm = re.search(r"/.*/libm.so.6", Path("/proc/self/maps").read_text())[0]
for library in (libm, "no-such-file.so"):
    try: load("jit", library=Path(library))
    except Failure as error: print(error)
"""
    first, second = run("-c", code).stdout.splitlines()[:2]
    assert "libm.so.6 has no operator add2" in first
    assert "no-such-file.so does not load" in second


PYBIND11 = """
import sys, torch
from lab import build
module = build.load("pybind11").module
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


@pytest.mark.thorough
def test_pybind11(copy_of_it, run, tmp_path):
    """The classic binding: values, checks, and a row of time.py, whatever the build of the operator is."""
    folder, env = copy_of_it
    assert run("-c", PYBIND11, root=folder, **env).stdout == "done\n"
    file = tmp_path / "times.json"
    run("time.py", "--compiler", "cmake", "--binding", "pybind11", *QUICK, "--json", file, root=folder, **env)
    content = json.loads(file.read_text())
    operator, classic = content["build"]
    assert (operator["compiler"], operator["binding"]) == ("cmake", "dispatcher")
    assert (classic["compiler"], classic["binding"], classic["cached"]) == ("jit", "pybind11", True)
    assert "pybind11" in [row["call"] for row in content["results"]]


@pytest.mark.thorough
def test_everything_that_goes_into_a_build_is_in_its_key(project):
    """Headers, where they lie, also behind a link; the settings of setuptools and CMake; no hidden or Python files."""
    code = "from lab.build import cache; print(cache.place('jit', None))"

    def keys(**variables):
        command = [sys.executable, "-c", code]
        env = os.environ | {"ADD2_WITH_CUDA": "0"} | variables
        done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=True)
        return done.stdout

    seen = [keys()]
    for name in (".add2.cpp.swp", "new.py", "__pycache__/new.cpython-311.pyc"):
        (project / "kernel" / name).parent.mkdir(exist_ok=True)
        (project / "kernel" / name).touch()
    assert keys() == seen[0]
    (project / "include" / "sub").mkdir()
    for file in ("include/sub/x.h", "kernel/y.inl", "setup.cfg"):
        (project / file).write_text("// new\n")
        seen.append(keys())
    (project / "include" / "sub").rename(project / "include" / "other")
    seen.append(keys())
    (project.parent / "elsewhere").mkdir()
    (project / "kernel" / "linked").symlink_to(project.parent / "elsewhere")
    for text in ("// one", "// two"):
        (project / "kernel" / "linked" / "z.h").write_text(text)
        seen.append(keys())
    seen.append(keys(CMAKE_TOOLCHAIN_FILE="/tmp/none.cmake"))
    assert len(set(seen)) == len(seen)


@pytest.mark.thorough
def test_damaged_in_the_cache(script):
    """A library that a power failure has cut off, a record that is lost or is no record: built again."""
    code = """
        first = forked(lambda: str(build.build("jit").library))
        library, record = Path(first), Path(first).with_name("build.json")
        seen = []
        for damage in (lambda: os.truncate(library, 1000), record.unlink, lambda: record.write_text('{"library": 5}')):
            damage()
            seen.append(forked(lambda: build.build("jit").cached))
            seen.append(forked(lambda: build.build("jit").cached))
        print(json.dumps(seen))
    """
    assert script(code) == [False, True] * 3


@pytest.mark.thorough
def test_a_build_tree_of_the_users(script):
    """A library that a user has built there with CMake's own commands stays, though its settings are others."""
    code = """
        tree = Path("build")
        tree.mkdir()
        (tree / "CMakeCache.txt").touch()
        (tree / "libadd2.so").write_text("the user's")
        found = [build.build("cmake").library.parent.parent == build.cache.folder(), len(list(build.cache.clean()))]
        print(json.dumps([*found, (tree / "libadd2.so").read_text()]))
    """
    assert script(code) == [True, 1, "the user's"]
