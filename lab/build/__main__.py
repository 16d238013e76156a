"""Builds of add2 that are there:

python3 -m lab.build commands --compiler jit    # prints the compilers' and linker's commands of the build
python3 -m lab.build clean                      # removes all that was built
"""

import argparse
import signal
import sys

from . import Failure, cache, fold, last, toolchain


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m lab.build", description="Show or remove the builds of add2.")
    actions = parser.add_subparsers(dest="action", required=True)
    shown = actions.add_parser("commands", help="print the compilers' and the linker's commands of a build")
    shown.add_argument("--compiler", choices=["jit", "setup", "cmake", "pybind11"], default="jit", help="which build")
    shown.add_argument("--full", action="store_true", help="with all include folders")
    actions.add_parser("clean", help="remove all that was built: add2's folders in the cache, and the copies here")
    args = parser.parse_args()
    if args.action == "clean":
        removed: list[str] = []
        try:
            removed.extend(cache.clean())  # printed at the end: a reader that has left stops nothing
        finally:
            print("\n".join(removed) or "nothing to remove")
        return
    build = last(args.compiler)
    if build is None:
        command = f"`python3 time.py --compiler {args.compiler}` (or `--binding pybind11`)"
        raise Failure(f"the sources as they are have not been built; {command} builds them")
    for command in build.commands:
        print(command if args.full else fold(command))


if __name__ == "__main__":
    try:
        toolchain.check_platform()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` is no error
        main()
    except (Failure, OSError) as error:
        sys.exit(f"lab.build: error: {error}")
