"""Solutions of docs/2_mistakes.md."""

import torch
from workshop import main


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


main()
