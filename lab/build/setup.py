"""The setup build: setuptools reads setup.py in the project's folder and leaves add2/_C.abi3.so. In a shell:

python3 setup.py clean build_ext --inplace --force
"""

import sys


def steps(binding: str, with_cuda: bool) -> tuple[list[list[str]], dict[str, str]]:
    """The command, and the environment variables for it. Nothing is installed: that is the user's `pip install`."""
    # ninja, which setup.py runs, compares times, not content: a file that was put back with its old time would not be
    # compiled. So `clean` removes the objects. And setuptools knows no headers: --force.
    command = [sys.executable, "setup.py", "clean", "build_ext", "--inplace", "--force"]
    return [command], {"ADD2_BINDING": binding, "ADD2_WITH_CUDA": str(int(with_cuda))}
