"""examples/minimal: its fake kernel and its Python function refuse what would give wrong results without an error, and
the pages say rightly which derivatives it has."""

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
    lambda: torch.func.grad(lambda x: minimal.add(x, x).sum())(x),
):
    try:
        call()
    except (RuntimeError, NotImplementedError) as error:
        print(str(error).splitlines()[0])
assert torch.equal(torch.vmap(minimal.add)(x, x), x + x)
for call in (
    lambda x: torch.func.jvp(minimal.add, (x, x), (x, x)),
    torch.func.grad(lambda x: minimal.add(x, x).sum()),
):
    for is_whole in (True, False):
        torch.compiler.reset()
        try:
            print("a wrong derivative:", torch.compile(call, fullgraph=is_whole)(x))
        except Exception as error:
            known = "no forward derivative", "setup_context"
            print(*[words for words in known if words in str(error)])
"""


def test_refusals(run):
    words = ["add: a and b differ in device"] * 2 + ["add has no forward derivative"] * 2
    first, *said = run("-c", PROGRAM, CUDA_VISIBLE_DEVICES="").stdout.splitlines()
    assert first == "cpu: the same as torch"
    assert said[:4] == words
    assert "setup_context" in said[4]  # register_autograd: refused by torch
    assert said[5:] == ["no forward derivative"] * 2 + ["setup_context"] * 2  # compiled, too
