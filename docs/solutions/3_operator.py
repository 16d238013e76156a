"""Solutions of docs/3_operator.md."""

import torch
from workshop import ROOT, copy_of_project, edit, main, need_gpus, need_nvcc, run, show

from lab import build


def exercise_1():
    """Shapes that differ, and integers: kernel/add2.cpp raises both errors, by refuse()."""
    build.load("jit")
    source = (ROOT / "kernel" / "add2.cpp").read_text()
    cases = {"b has shape": (torch.ones(3), torch.ones(4)), "the dtype is not": 2 * (torch.ones(3, dtype=torch.int64),)}
    for words, (a, b) in cases.items():
        try:
            torch.ops.add2.add2(a, b)
        except RuntimeError as error:
            message = str(error)
        show(message)
        assert words in message
        assert words in source


def exercise_2():
    """Without the device guard the tests with cuda:1 fail."""
    need_gpus(2)
    need_nvcc()
    with copy_of_project() as copy:
        guard = "if (cudaGetDevice(&current) != 0 || current != device) guard.emplace(device);"
        edit(copy / "kernel" / "add2.cpp", guard, "")
        show(run("-m", "pytest", "-q", "tests/operator/test_cuda.py", folder=copy, status=1), "FAILED", "failed")


def exercise_3():
    """On stream 0 only the tests with a stream of their own fail, and those that capture one."""
    need_gpus()
    need_nvcc()
    with copy_of_project() as copy:
        edit(copy / "kernel" / "add2.cpp", "n, dtype, stream);", "n, dtype, nullptr);")
        files = ("tests/operator/test_cuda.py", "tests/operator/test_subsystems.py")
        tests = run("-m", "pytest", "-q", *files, folder=copy, status=1)
    show(tests, "FAILED", "failed")
    assert "test_runs_on_the_current_stream" in tests


def exercise_4():
    """`import add2` finds the operator registered, and loads nothing more."""
    build.load("cmake")
    import add2

    print("   loaded:", *torch.ops.loaded_libraries, "- and", add2.__file__)
    assert [path.rpartition("/")[2] for path in torch.ops.loaded_libraries] == ["libadd2.so"]


main()
