"""python3 -m lab.build clean: removes all that was built. (A user's own files stay.)"""

import argparse
import signal
import sys

from . import Failure, cache, toolchain


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m lab.build", description="Remove the builds of add2.")
    parser.add_argument("action", choices=["clean"], help="remove add2's folders in the cache, and the copies here")
    parser.parse_args()
    removed: list[str] = []
    try:
        toolchain.check_platform()
        removed.extend(cache.clean())
    except (Failure, OSError) as error:
        sys.exit(f"lab.build: error: {error}")
    finally:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that has left is no error, and stops nothing
        print("\n".join(removed) or "nothing to remove")


if __name__ == "__main__":
    main()
