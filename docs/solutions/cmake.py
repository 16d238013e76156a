"""Solutions of docs/cmake.md."""

from workshop import copy_of_project, main, need_nvcc, run, show

FOLLOW, BUILD = "examples/findcuda/follow.py", "build/findcuda"


def exercise_1():
    """nvcc prints the error; CMake blames the object that its script was to make."""
    need_nvcc()
    with copy_of_project() as copy:
        kernel = copy / "kernel" / "add2_kernel.cu"
        kernel.write_text(kernel.read_text() + "this is no C++\n")
        said = run(FOLLOW, folder=copy, status=2)
    show(said, "): error", "Error generating file")
    assert "Error generating file" in said


def exercise_2():
    """FindCUDA reads the list of headers when CMake configures, so that runs once more. Then all three are compiled."""
    need_nvcc()
    with copy_of_project() as copy:
        run(FOLLOW, folder=copy)
        for is_touched in (False, True):
            if is_touched:
                (copy / "include" / "add2.h").touch()
            for folder in (BUILD, f"{BUILD}/language"):
                said = run("cmake", "--build", folder, folder=copy)
                show(said, "Re-running CMake", "Building")
                is_first = folder == BUILD and not is_touched
                assert ("Re-running CMake" in said) == is_first
                assert is_first or said.count("Building") == 3


main()
