"""Solutions of docs/timing.md."""

import sys
import time

import torch
from workshop import copy_of_project, edit, main, need_gpus, run, show


def exercise_1():
    """A clock that does not wait for the kernel reads more TB/s than any memory has."""
    need_gpus()
    a, b = torch.ones(2, 1 << 26, device="cuda")
    c = torch.add(a, b)
    torch.add(a, b, out=c)  # the first call of its kind takes longer
    torch.cuda.synchronize()
    start = time.perf_counter()
    torch.add(a, b, out=c)
    seconds = time.perf_counter() - start
    print(f"   {seconds * 1e6:.1f} us, {3 * c.nbytes / seconds / 1e12:.0f} TB/s")


def exercise_2():
    """On a CPU a call has finished when it returns: the four agree."""
    show(run("time.py", "--sync-study", "--device", "cpu"), "before", "after", "neither")


def exercise_3():
    """A product of matrices before the first event changes no time between the events."""
    need_gpus()
    with copy_of_project() as copy:
        arguments = ("time.py", "--clocks", "--sizes", "2^26")
        show(run(*arguments, folder=copy), "call  ", "torch.add(out)", "torch_launch_add2")
        edit(
            copy / "lab" / "bench" / "clock.py",
            "            start.record()\n            call()",
            "            torch.mm(*torch.ones(2, 4096, 4096, device='cuda'))\n"
            "            start.record()\n            call()",
        )
        show(run(*arguments, folder=copy), "call  ", "torch.add(out)", "torch_launch_add2")


if __name__ == "__main__":
    sys.exit(main())
