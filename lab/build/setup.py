"""The setup build: setuptools reads setup.py in the project's folder and leaves add2/_C.abi3.so. In a shell:

python3 setup.py build_ext --inplace
"""

import sys


def steps(folder: str) -> list[list[str]]:
    """The command. Nothing is installed: that is the user's `pip install`."""
    # In a new folder, not --inplace: ninja, which setup.py runs, compares times, not content, and would not compile a
    # file that was put back with its old time.
    return [[sys.executable, "setup.py", "build_ext", "--build-temp", f"{folder}/objects", "--build-lib", folder]]
