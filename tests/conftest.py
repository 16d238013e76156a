"""Options and fixtures that all tests share.

python3 -m pytest          # the short run: the operator with one build, each build once, both programs, the pages
python3 -m pytest --all    # everything; a test or a file that is named on the command line runs whole, too
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.build import COMPILERS
from lab.build.cache import leftovers

ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run every test, also those marked `thorough`")
    parser.addoption("--library", help="a ready library that tests/operator uses instead of a build")
    parser.addoption("--build", choices=COMPILERS, default="jit", help="build that tests/operator uses")


def pytest_configure():
    """Many processes run at once: a few threads each, which sleep while they wait."""
    for name, value in (
        ("OMP_NUM_THREADS", "2"),
        ("OMP_WAIT_POLICY", "PASSIVE"),
        ("TORCHINDUCTOR_COMPILE_THREADS", "1"),
    ):
        os.environ.setdefault(name, value)


def pytest_collection_modifyitems(config, items):
    """Without --all, leave out the tests marked `thorough`, except those that are named one by one."""
    if config.getoption("--all") or any("::" in argument for argument in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter, config):
    """After a failure in the short run: which part of the long one tells more."""
    failed = terminalreporter.stats.get("failed", []) + terminalreporter.stats.get("error", [])
    if failed and not config.getoption("--all"):
        files = dict.fromkeys(report.nodeid.split("::")[0] for report in failed)
        terminalreporter.write_line(f"More tests of the same: python3 -m pytest --all {' '.join(files)}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Most tests wait for a compiler or for Python to start: more than eight at a time only slow each other down.

    One test that is named, and a run of pytest inside a test, need no workers.
    """
    if "PYTEST_XDIST_WORKER" in os.environ or any("::" in argument for argument in config.args):
        return 0
    return min(8, os.cpu_count() or 1)


@pytest.fixture(scope="session", autouse=True)
def own_jit_cache(tmp_path_factory):
    """Tests build from nothing and leave the user's cache alone. Workers and nested runs of pytest share one cache."""
    if "ADD2_TEST_CACHE" not in os.environ:
        base = tmp_path_factory.getbasetemp()
        folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "jit cache"  # a home may have a space
        folder.mkdir(exist_ok=True)
        os.environ |= {"TORCH_EXTENSIONS_DIR": str(folder), "ADD2_TEST_CACHE": str(folder)}
        # torch.compile's cache does not notice that an operator's gradient has changed (pytorch issue 144344).
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder.with_name("inductor"))


@pytest.fixture(scope="session")
def forkserver(own_jit_cache):
    command = [sys.executable, str(ROOT / "tests" / "forkserver.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield server
        server.stdin.close()


# Variables that are read when Python starts or torch is imported: a fork comes too late for them.
EARLY = ("PYTHON", "OMP_", "LD_", "PYTORCH_")


@pytest.fixture
def run(forkserver, tmp_path_factory):
    """Run a program of the project (or any Python arguments) in a process of its own; returns the finished process."""

    def run(*arguments, root=ROOT, cwd=None, status=0, drop=(), **env):
        arguments = [str(argument) for argument in arguments]
        if arguments[0].endswith(".py"):
            arguments[0] = str(root / arguments[0])
        environment = {name: value for name, value in os.environ.items() if name not in drop} | env
        options = {"cwd": str(cwd or root), "env": environment}
        if any(name.startswith(EARLY) for name in (*env, *drop)):
            command = [sys.executable, *arguments]
            done = subprocess.run(command, **options, capture_output=True, text=True, timeout=600, check=False)
        else:
            outputs = [tmp_path_factory.getbasetemp() / name for name in ("stdout", "stderr")]
            for path in outputs:
                path.write_text("")
            options |= {"arguments": arguments, "outputs": list(map(str, outputs)), "seconds": 600}
            print(json.dumps(options), file=forkserver.stdin, flush=True)
            ended = int(forkserver.stdout.readline())
            done = subprocess.CompletedProcess(arguments, ended, *(path.read_text() for path in outputs))
        assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.fixture
def start():
    """Start a program of the project in a process and a group of its own, for a Ctrl-C in the middle: a Popen."""

    def start(program, *arguments, **options):
        return subprocess.Popen(
            [sys.executable, str(ROOT / program), *map(str, arguments)],
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's `&` has it ignored
            **options,
        )

    return start


@pytest.fixture
def project(tmp_path):
    """A copy of the project, without what builds have left, in a folder whose path has spaces."""
    copy = tmp_path / "a copy of it"
    shutil.copytree(ROOT, copy, ignore=leftovers)
    return copy
