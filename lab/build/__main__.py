"""Builds of add2 that are there:

python3 -m lab.build commands --compiler jit    # prints the compilers' and linker's commands of the last build
python3 -m lab.build clean                      # removes all that was built
"""

import argparse
import sys

from . import cache, commands
from .builder import BINDINGS, COMPILERS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m lab.build", description="What the builds of add2 have left.")
    actions = parser.add_subparsers(dest="action", required=True)
    shown = actions.add_parser("commands", help="print the compilers' and the linker's commands of the last build")
    shown.add_argument("--compiler", choices=COMPILERS, default="jit", help="which build (default: %(default)s)")
    shown.add_argument("--binding", choices=BINDINGS, default="dispatcher", help="(default: %(default)s)")
    shown.add_argument("--full", action="store_true", help="with all include folders")
    actions.add_parser("clean", help="remove all that was built: the jit cache's folders of add2, build/, add2/*.so")
    args = parser.parse_args()
    if args.action == "clean":
        try:
            for path in cache.clean():
                print(f"removed {path}")
        except OSError as error:
            parser.error(f"{error.filename}: {error.strerror}")
        return 0
    if args.compiler == "cmake" and args.binding == "pybind11":
        parser.error("the cmake build has no pybind11 binding")
    stamps = cache.stamps(args.compiler, args.binding)
    if not stamps:
        build = f"python3 time.py --compiler {args.compiler} --binding {args.binding}"
        print(f"nothing is built; `{build}` builds it", file=sys.stderr)
        return 1
    for command in cache.read_stamp(stamps[-1])["commands"]:
        print(command if args.full else commands.fold(command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
