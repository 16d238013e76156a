"""Solutions of docs/17_shipping.md."""

from workshop import copy_of_project, edit, main, run, show

TEST = "tests/test_wheel.py::test_library_shows_only_the_launchers"


def exercise_1():
    """Without -fvisibility=hidden a helper of kernel/add2.cpp is visible to every other library."""
    with copy_of_project() as copy:
        source = copy / "kernel" / "add2.cpp"
        source.write_text(source.read_text() + "int twice(int x) { return 2 * x; }\n")
        edit(copy / "setup.py", ' "-fvisibility=hidden"]', "]")
        tests = run("-m", "pytest", "-q", TEST, folder=copy, status=1)
    show(tests, "_Z5twicei", "failed")
    assert "_Z5twicei" in tests


def exercise_2():
    """torch's unstable C++ is refused by torch's own header; allowed, it leaves names of at:: and c10::."""
    with copy_of_project() as copy:
        source = copy / "kernel" / "add2.cpp"
        source.write_text("#include <ATen/ops/ones.h>\n" + source.read_text())  # all of ATen takes much longer
        build = ("time.py", "--sizes", "100", "--device", "cpu")
        show(run(*build, folder=copy, status=1), "error")
        edit(copy / "lab" / "build.py", '"-std=c++17", "-DTORCH_TARGET_VERSION=0x020a000000000000"', '"-std=c++20"')
        source.write_text(source.read_text() + "at::Tensor unstable() { return at::ones({1}); }\n")
        run(*build, folder=copy, ADD2_WITH_CUDA="0")
        [library] = (copy / "jit cache").rglob("add2.so")
        names = run("nm", "-DC", "--undefined-only", library)
    show(names, " at::", " c10::")
    assert " at::" in names


main()
