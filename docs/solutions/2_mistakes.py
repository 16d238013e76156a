"""Solutions of docs/2_mistakes.md."""

import sys

import torch
from workshop import ROOT, copy_of_project, edit, main, need_gpus, need_nvcc, run

sys.path.insert(0, str(ROOT / "examples" / "2_mistakes"))


def exercise_1():
    """Two transposed tensors: right, because c gets the same strides. One of them: wrong."""
    from mistakes import careless

    a = torch.arange(6.0).view(2, 3)
    both, one = careless(a.t(), a.t()), careless(a.t(), a.t().contiguous())
    print("   strides of a and c:", a.t().stride(), both.stride(), "\n   one contiguous:", one.tolist())
    assert torch.equal(both, 2 * a.t())
    assert not torch.equal(one, 2 * a.t())


def exercise_2():
    """An expanded tensor has one element in memory; contiguous() makes three of it."""
    from mistakes import careful, careless

    memory = torch.tensor([1.0, 98, 99])
    a, b = torch.zeros(3), memory[:1].expand(3)
    print("   strides:", b.stride(), "careless:", careless(a, b).tolist(), "careful:", careful(a, b).tolist())
    assert careless(a, b).tolist() == [1, 98, 99]
    assert careful(a, b).tolist() == [1, 1, 1]


def exercise_3():
    """Without the early return, an empty tensor on a GPU is an invalid launch."""
    need_gpus()
    need_nvcc()
    program = "from mistakes import *; a = torch.empty(0, device='cuda'); print(attempt(careful, a, a))"
    with copy_of_project() as copy:
        folder = copy / "examples" / "2_mistakes"
        command = (sys.executable, "-c", program)
        assert "[]" in run(*command, folder=copy, PYTHONPATH=str(folder))
        edit(folder / "mistakes.cu", "  if (n == 0) return c;         // a grid of no blocks cannot be launched\n", "")
        text = run(*command, folder=copy, PYTHONPATH=str(folder))
    assert "the launch failed" in text


if __name__ == "__main__":
    sys.exit(main())
