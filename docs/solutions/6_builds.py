"""Solutions of docs/6_builds.md."""

import itertools
import os

from workshop import copy_of_project, main, need_nvcc, run, show

SHORT = ("--sizes", "100", "--device", "cpu")
LIBRARY = "jit cache/add2/add2.so"


def exercise_1():
    """A changed comment compiles, and so does changing it back; not an edit with an old time."""
    links = []
    with copy_of_project() as copy:
        source = copy / "kernel" / "add2_cpu.cpp"
        before, time = source.read_text(), source.stat().st_mtime_ns
        for text in (before, before + "// a comment\n", before, before + "// a comment\n"):
            source.write_text(text)
            if len(links) == 3:
                os.utime(source, ns=(time, time))  # as `cp -p` would
            run("time.py", "--compiler", "jit", *SHORT, folder=copy)
            links.append((copy / LIBRARY).stat().st_mtime_ns)
    compiled = [True, *(new != old for old, new in itertools.pairwise(links))]
    print("   was it compiled?", compiled)
    assert compiled == [True, True, True, False]


def exercise_2():
    """add2.cpp and add2.cu in one folder: jit and CMake name the objects apart, setuptools does not."""
    need_nvcc()
    with copy_of_project() as copy:
        (copy / "kernel" / "add2_kernel.cu").rename(copy / "kernel" / "add2.cu")
        for file in ("lab/build.py", "setup.py", "CMakeLists.txt"):
            (copy / file).write_text((copy / file).read_text().replace("add2_kernel.cu", "add2.cu"))
        for compiler in ("jit", "cmake"):
            show(run("time.py", "--compiler", compiler, "--rebuild", *SHORT, folder=copy), "add2.cu ")
        show(run("time.py", "--compiler", "setup", *SHORT, folder=copy, status=1))


main()
