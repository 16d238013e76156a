"""The pages on debugging and profiling: each tool says of examples/debug and examples/profile what they show."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab import toolchain

ROOT = Path(__file__).resolve().parent.parent
DEBUG, PROFILE = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("12_debug", "13_profile"))
BUGS = ROOT / "examples" / "debug" / "bugs.py"
TOOLS = f"{toolchain.tool_path()}:/usr/local/cuda/bin"
NO_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def find(tool):
    return shutil.which(tool, path=TOOLS) or pytest.skip(f"{tool} is not installed")


def output(*command, **env):
    run = {"cwd": ROOT, "env": os.environ | env, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run([*map(str, command)], timeout=120, check=False, **run).stdout


@pytest.mark.parametrize("flags", [[], ["--debug"], ["--print"]])
def test_without_gpu(flags, run):
    if not toolchain.find_nvcc():
        assert "bugs.cu is not compiled" in run(BUGS, "--build", *flags, status=1).stderr
        return
    assert "is compiled" in run(BUGS, "--build", *flags).stdout


SHORT = ("race",)  # test_emulator_project.py finds each bug of the file in its line
BUG_NAMES = ("far", "near", "short", "launch", "empty", "race", "barrier", "hang")


@pytest.mark.anywhere
@pytest.mark.parametrize(
    "bug", [name if name in SHORT else pytest.param(name, marks=pytest.mark.thorough) for name in BUG_NAMES]
)
def test_emulator(bug, run, emulator_cache):
    """It names each bug, in the words of the page."""
    _, *faults = re.split("^FAULT: ", run(BUGS, bug, "--emulate").stdout, flags=re.MULTILINE)
    assert faults
    without_numbers = re.compile(r" \(\d+ times\)")
    for fault in faults:
        assert without_numbers.sub("", f"FAULT: {fault.strip()}") in without_numbers.sub("", DEBUG)


@pytest.mark.thorough
@pytest.mark.anywhere
def test_emulator_counts_as_nsight_compute(run, emulator_cache, tmp_path):
    """Of all launches in the record, but where the record says that nvcc makes something else of the source."""
    rows = json.loads((ROOT / "docs/results/h200-emulator-ncu.json").read_text())["results"]
    run("examples/profile/counts.py", "--json", tmp_path / "counts.json")
    found = json.loads((tmp_path / "counts.json").read_text())["results"]
    assert [row["launch"] for row in found] == [row["launch"] for row in rows]
    for ours, row in zip(found, rows, strict=True):
        differences = {name for name in row["ncu"] if ours[name] != row["ncu"][name]}
        assert differences == {*row["different"]}, row["launch"]


@pytest.mark.thorough
def test_counts_are_compared_with_a_table_of_ncu(run, emulator_cache, tmp_path):
    """One wrong number is named; a table of other launches is refused."""
    run("examples/profile/counts.py", "--json", tmp_path / "counts.json")
    launches = json.loads((tmp_path / "counts.json").read_text())["results"]
    launches[3]["load_sectors"] += 1000
    head = '"ID","Kernel Name","Metric Name","Metric Value"'
    lines = [
        f'"{i}","void {row["kernel"]}<int>(T1 *)","smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ld.sum","{x:,}"'
        for i, row in enumerate(launches)
        for x in [row["load_sectors"]]
    ]
    table = tmp_path / "ncu.csv"
    table.write_text("\n".join(["==PROF== Connected", head, *lines]))
    done = run("examples/profile/counts.py", "--compare", table, status=1)
    assert f"1 of {len(launches)} launches differ: {launches[3]['launch']}" in done.stderr
    assert f"(ncu: {launches[3]['load_sectors']:,})" in done.stdout
    table.write_text("\n".join([head, *lines[1:]]))
    assert "has other launches" in run("examples/profile/counts.py", "--compare", table, status=1).stderr
    table.write_text("nothing")
    assert "has no table" in run("examples/profile/counts.py", "--compare", table, status=1).stderr


def test_emulator_has_no_devices(run):
    assert "it needs a GPU" in run(BUGS, "cpu", "--emulate", status=1).stderr


@pytest.mark.parametrize(
    ("bug", "env", "words"),
    [
        ("far", {}, "result: [0.0]"),
        ("far --print", {}, "block 0, thread 0: x[1048576] of 1"),
        ("empty", {}, "result: [1.0, 1.0, 1.0, 1.0, 1.0]"),
        ("cpu", {}, 'print("result:", y.flatten()[:5].tolist())'),
        ("cpu", {"CUDA_LAUNCH_BLOCKING": "1"}, 'run.launch("start_add", c, a, b, 5, 256)'),
        ("launch", {}, "RuntimeError: invalid argument"),
    ],
)
def test_alone(cuda, bug, env, words, run):
    done = run(BUGS, *bug.split(), status=None, **env)
    assert words in done.stdout + done.stderr
    assert words in DEBUG


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("bug", "tool", "env", "words"),
    [
        ("far", "memcheck", {}, "Invalid __global__ write of size 4 bytes"),
        ("near", "memcheck", {}, "0 errors"),
        ("near", "memcheck", NO_CACHE, "is 1 bytes after the nearest allocation at"),
        ("short", "memcheck", NO_CACHE, "Invalid __global__ read of size 4 bytes"),
        ("empty", "initcheck", {}, "0 errors"),
        ("empty", "initcheck", NO_CACHE, "Uninitialized __global__ memory read of size 4 bytes"),
        ("race", "memcheck", {}, "0 errors"),
        ("race", "racecheck", {}, "Race reported between Write access at sum(float *, const float *)"),
        ("barrier", "memcheck", {}, "0 errors"),
        ("barrier", "synccheck", {}, "Barrier error detected. Divergent thread(s) in warp."),
    ],
)
def test_sanitizer(cuda, bug, tool, env, words):
    assert words in output(find("compute-sanitizer"), "--tool", tool, sys.executable, BUGS, bug, **env)
    assert words in DEBUG


@pytest.mark.thorough
def test_core_dump_of_a_hang(cuda, tmp_path):
    """A byte for the pipe makes the driver write a core dump and end the process; cuda-gdb names the line."""
    gdb, core, pipe = find("cuda-gdb"), tmp_path / "core", tmp_path / "pipe"
    env = {"CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1", "CUDA_COREDUMP_FILE": f"{core}", "CUDA_COREDUMP_PIPE": f"{pipe}"}
    command = [sys.executable, BUGS, "hang"]
    with subprocess.Popen(command, env=os.environ | env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert "launched" in process.stdout.readline()
            time.sleep(1)
            pipe.write_text("1")
            process.wait(60)
        finally:
            process.kill()
    found = output(gdb, "-batch", "-ex", f"target cudacore {core}")
    assert "wait<<<(1,1,1),(32,1,1)>>> ()" in found
    assert "while (*flag == 0) {" in found


@pytest.mark.thorough
def test_debugger_names_the_exception(cuda):
    found = output(find("cuda-gdb"), "-batch", "-ex", "run", "--args", sys.executable, BUGS, "cpu", "--debug")
    assert "CUDA_EXCEPTION_14, Warp Illegal Address" in found
    assert re.search(r"add<<<.*n=5\) at .*bugs.cu:21", found)


@pytest.mark.parametrize(("rung", "padding"), [(2, 0), (3, 1)])
def test_step(cuda, rung, padding, run, tmp_path):
    found = run("examples/profile/step.py", "--rung", rung, cwd=tmp_path).stdout
    assert re.search(rf"2 x  void through_tile<unsigned int, {padding}>", found)
    assert (tmp_path / "trace.json").stat().st_size > 1000


@pytest.mark.thorough
@pytest.mark.parametrize("padding", [0, 1])
def test_sass(padding, nvcc, tmp_path):
    """Without a GPU: registers and shared memory as the page says, and the instruction that its change replaces."""
    triton = pytest.importorskip("triton")
    dump = shutil.which("cuobjdump", path=f"{TOOLS}:{Path(triton.__file__).parent}/backends/nvidia/bin")
    library = tmp_path / "transpose.o"
    log = output(nvcc, "-O3", "-arch=sm_90", "-Xptxas", "-v", "-c", "examples/transpose/transpose.cu", "-o", library)
    name = f"_Z12through_tileIjLi{padding}EEvPT_PKS0_lli"
    used = re.search(rf"Compiling entry function '{name}'(?:.*\n)+?.*(Used .* smem)", log)[1]
    assert used in PROFILE
    sass = output(dump or pytest.skip("cuobjdump is not installed"), "-sass", "-fun", name, library)
    [step] = re.findall(r"\*/ +((?:LEA|IMAD) R3, R2, \w+, (?:0x7|R3)) ;", sass)
    assert step in PROFILE
