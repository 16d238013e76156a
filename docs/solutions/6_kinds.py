"""Solutions of docs/6_kinds.md."""

import torch
from workshop import main


def exercise_1():
    """opcheck finds the result that is the input; gradients and compiled results that happen to be right do not."""
    import kinds

    found = torch.library.opcheck(kinds.ops.same.default, (torch.ones(3),), raise_exception=False)
    print("  ", {test: result if isinstance(result, str) else type(result).__name__ for test, result in found.items()})
    assert found["test_schema"] != "SUCCESS"
    assert found["test_aot_dispatch_dynamic"] == "SUCCESS"
    assert {*torch.library.opcheck(kinds.ops.copied.default, (torch.ones(3),)).values()} == {"SUCCESS"}


def exercise_2():
    """The buffer that is returned keeps x alive, so the compiler may not write into it."""
    import kinds

    def both(a):
        x = 2 * a
        y = x.clone()
        kinds.ops.mirror_into(y, x)
        return y, x

    a = torch.arange(1.0, 5)
    torch.testing.assert_close(torch.compile(both)(a), both(a), rtol=0, atol=0)
    print("   right, as x is still needed")


main()
