"""Solutions of docs/5_builds.md."""

import itertools
import os
import sys

from workshop import copy_of_project, main, need_nvcc, run, show

SHORT = ("--sizes", "100", "--device", "cpu")
LIBRARIES = {"jit": "jit cache/add2/add2.so", "setup": "add2/_C.abi3.so", "cmake": "build/libadd2.so"}


def exercise_1():
    """A changed comment compiles, and so does changing it back; not if the file gets its old time back, too."""
    links = []
    with copy_of_project() as copy:
        source = copy / "kernel" / "add2_cpu.cpp"
        before, time = source.read_text(), source.stat().st_mtime_ns
        for text in (before, before + "// a comment\n", before, before + "// a comment\n", before):
            source.write_text(text)
            if len(links) == 4:
                os.utime(source, ns=(time, time))  # as `cp -p` would
            run("time.py", "--compiler", "jit", *SHORT, folder=copy)
            links.append((copy / LIBRARIES["jit"]).stat().st_mtime_ns)
    compiled = [True, *(new != old for old, new in itertools.pairwise(links))]
    print("   was it compiled?", compiled)
    assert compiled == [True, True, True, True, False]


def exercise_2():
    """jit's link names libtorch_cuda.so; what the library may take from there is one weak symbol."""
    need_nvcc()
    named = {}
    with copy_of_project() as copy:
        for compiler, library in LIBRARIES.items():
            said = run("time.py", "--compiler", compiler, "--rebuild", *SHORT, folder=copy)
            [link] = [line for line in said.splitlines() if " -shared" in line]
            named[compiler] = "-ltorch_cuda" in link or "libtorch_cuda.so" in link
            needed = run("nm", "-D", "--undefined-only", copy / library)
            show(needed, "cuda")
            assert "w aoti_torch_get_current_cuda_stream" in needed
    print("   names libtorch_cuda.so:", named)
    assert named == {"jit": True, "setup": False, "cmake": False}


def exercise_3():
    """add2.cpp and add2.cu in one folder: jit and CMake name the objects apart, setuptools does not."""
    need_nvcc()
    with copy_of_project() as copy:
        (copy / "kernel" / "add2_kernel.cu").rename(copy / "kernel" / "add2.cu")
        for file in ("lab/build.py", "setup.py", "CMakeLists.txt"):
            (copy / file).write_text((copy / file).read_text().replace("add2_kernel.cu", "add2.cu"))
        for compiler in ("jit", "cmake"):
            show(run("time.py", "--compiler", compiler, "--rebuild", *SHORT, folder=copy), "add2.cu ")
        show(run("time.py", "--compiler", "setup", *SHORT, folder=copy, status=1))


if __name__ == "__main__":
    sys.exit(main())
