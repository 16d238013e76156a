"""Solutions of docs/troubleshooting.md."""

from workshop import main, run, show


def exercise_1():
    """lab/toolchain.py complains, before anything is compiled."""
    said = run("time.py", "--rebuild", status=1, CXX="no-such-compiler")
    show(said)
    assert "no-such-compiler is not installed" in said


def exercise_2():
    """A killed build: the next one does not wait. A test kills one, and starts two."""
    show(run("-m", "pytest", "-q", "tests/test_builds.py::test_follows_the_sources[jit]"), "passed")


main()
