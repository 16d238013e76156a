"""Builds of add2 that are there:

python3 -m lab.build commands --compiler jit    # prints the compilers' and linker's commands of the last build
python3 -m lab.build clean                      # removes all that was built
"""

import argparse
import os
import sys

from .. import Failure
from . import cache, commands
from .builder import BINDINGS, COMPILERS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m lab.build", description="Show or remove the builds of add2.")
    actions = parser.add_subparsers(dest="action", required=True)
    shown = actions.add_parser("commands", help="print the compilers' and the linker's commands of the last build")
    shown.add_argument("--compiler", choices=COMPILERS[:3], default="jit", help="which build (default: %(default)s)")
    shown.add_argument("--binding", choices=BINDINGS, default="dispatcher", help="(default: %(default)s)")
    shown.add_argument("--full", action="store_true", help="with all include folders")
    actions.add_parser("clean", help="remove all that was built: add2's folders in the jit cache, build/, add2/*.so")
    args = parser.parse_args()
    if args.action == "clean":
        for line in cache.clean():
            print(line)
        return 0
    if args.compiler == "cmake" and args.binding == "pybind11":
        parser.error("the cmake build has no pybind11 binding")
    stamp = cache.last_stamp(args.compiler, args.binding)
    if stamp is None:
        build = f"python3 time.py --compiler {args.compiler} --binding {args.binding}"
        print(f"nothing is built; `{build}` builds it", file=sys.stderr)
        return 1
    for command in stamp["commands"]:
        print(command if args.full else commands.fold(command))
    return 0


def run() -> int:
    try:
        status = main()
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Failure as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename or 'output'}: {error.strerror}"
    print(f"lab.build: error: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(run())
