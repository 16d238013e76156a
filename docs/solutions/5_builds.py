"""Solutions of docs/5_builds.md."""

import sys

from workshop import copy_of_project, main, need_nvcc, run, show

from lab import build

SHORT = ("--sizes", "100", "--device", "cpu")


def exercise_1():
    """A changed comment builds once; changed back, what was built before is still there."""
    builds = []
    with copy_of_project() as copy:
        source = copy / "kernel" / "add2_cpu.cpp"
        before = source.read_text()
        for text in (before, before + "// a comment\n", before):
            source.write_text(text)
            builds.append("building add2" in run("time.py", "--compiler", "jit", *SHORT, folder=copy))
    print("   was it built?", builds)
    assert builds == [True, True, False]


def exercise_2():
    """jit's link names libtorch_cuda.so; what the library may take from there is one weak symbol."""
    need_nvcc()
    named = {}
    for compiler in ("jit", "setup", "cmake"):
        library = build.build(compiler).library
        commands = build.last(compiler).with_name("build.json").read_text()
        named[compiler] = "-ltorch_cuda" in commands or "libtorch_cuda.so" in commands
        needed = run("nm", "-D", "--undefined-only", library)
        show(needed, "cuda")
        assert "w aoti_torch_get_current_cuda_stream" in needed
    print("   names libtorch_cuda.so:", named)
    assert named == {"jit": True, "setup": False, "cmake": False}


def exercise_3():
    """add2.cpp and add2.cu in one folder: jit and CMake name the objects apart, setuptools does not."""
    need_nvcc()
    with copy_of_project() as copy:
        (copy / "kernel" / "add2_kernel.cu").rename(copy / "kernel" / "add2.cu")
        for file in ("lab/build/jit.py", "setup.py", "CMakeLists.txt"):
            (copy / file).write_text((copy / file).read_text().replace("add2_kernel.cu", "add2.cu"))
        for compiler in ("jit", "cmake"):
            show(run("time.py", "--compiler", compiler, *SHORT, folder=copy), "add2.cu ")
        show(run("time.py", "--compiler", "setup", *SHORT, folder=copy, status=1))


if __name__ == "__main__":
    sys.exit(main())
