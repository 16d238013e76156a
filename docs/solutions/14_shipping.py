"""Solutions of docs/14_shipping.md."""

import sys

from workshop import copy_of_project, edit, main, run, show

from lab import build

TEST = "tests/test_wheel.py::test_library_shows_only_the_launchers"


def exercise_1():
    """Without -fvisibility=hidden a helper of kernel/add2.cpp is visible to every other library."""
    with copy_of_project() as copy:
        source = copy / "kernel" / "add2.cpp"
        source.write_text(source.read_text() + "int twice(int x) { return 2 * x; }\n")
        run("-m", "pytest", "-q", TEST, folder=copy)
        edit(copy / "setup.py", ' "-fvisibility=hidden"]', "]")
        tests = run("-m", "pytest", "-q", TEST, folder=copy, status=1)
    show(tests, "_Z5twicei", "failed")
    assert "_Z5twicei" in tests


def exercise_2():
    """torch's unstable C++ is refused by torch's own header; allowed, it leaves names of at:: and c10::."""
    with copy_of_project() as copy:
        source = copy / "kernel" / "add2.cpp"
        edit(source, "#include <optional>", "#include <ATen/ATen.h>\n#include <optional>")
        build = ("time.py", "--sizes", "100", "--device", "cpu")
        show(run(*build, folder=copy, status=1), "error")
        flags = '"-std=c++17", "-fvisibility=hidden", "-DTORCH_TARGET_VERSION=0x020a000000000000"]'
        edit(copy / "lab" / "build" / "jit.py", flags, '"-std=c++20", "-fvisibility=hidden"]')
        source.write_text(source.read_text() + "at::Tensor unstable() { return at::ones({1}); }\n")
        run(*build, folder=copy, ADD2_WITH_CUDA="0")
        [library] = (copy / "jit cache").rglob("add2.so")
        names = run("nm", "-DC", "--undefined-only", library)
    show(names, " at::", " c10::")
    assert " at::" in names


def exercise_3():
    """pybind11 brings back Python's names and torch's C++ names."""
    library = build.build("pybind11").library
    names = run("nm", "-DC", "--undefined-only", library)
    print(*(f"   {names.count(f' {word}')} names begin with {word}" for word in ("Py", "at::", "c10::")), sep="\n")
    assert all(f" {word}" in names for word in ("Py", "at::", "c10::"))


if __name__ == "__main__":
    sys.exit(main())
