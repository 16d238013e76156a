"""examples/minimal: its fake kernel and its Python function refuse what would give wrong results without an error."""

PROGRAM = """
import sys, torch
sys.path.insert(0, "examples/minimal")
import minimal
x = torch.ones(3)
for call in (
    lambda: minimal.add(x, x.to("meta")),  # a CPU's result without values
    lambda: minimal.add(x.to("meta"), x),
    lambda: torch.func.jvp(minimal.add, (x, x), (x, x)),  # a tangent that is lost
    lambda: torch.func.jacfwd(minimal.add)(x, x),
):
    try:
        call()
    except (RuntimeError, NotImplementedError) as error:
        print(str(error).splitlines()[0])
"""


def test_refusals(run):
    words = ["add: a and b differ in device"] * 2 + ["add has no forward derivative"] * 2
    said = run("-c", PROGRAM, CUDA_VISIBLE_DEVICES="").stdout.splitlines()
    assert said == ["cpu: the same as torch", *words]
