"""Four kinds of operators: what torch.compile and autograd do with each, and the traps.

    python3 examples/kinds/kinds.py             # all that this machine can show
    python3 examples/kinds/kinds.py aliased     # one of them

docs/6_kinds.md explains them. The kernels are NumPy's: like a CUDA kernel, they write memory without torch's knowledge.
"""

import os
import sys
import textwrap
import warnings

os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # the cache does not notice that tags or effects have changed
import torch

warnings.simplefilter("ignore")
library = torch.library.Library("kinds", "DEF")
calls = []  # what the kernels saw; also the side effect of `note`
host = {"step": 0}


def define(schema, kernel, fake, tags=(), key="CPU"):
    name = schema.partition("(")[0]
    library.define(schema, tags=tags)
    library.impl(name, kernel, key)
    torch.library.register_fake(f"kinds::{name}", fake)


def write_mirror(c, a):
    """c[i] = a[i] + a[n-1-i]: not pointwise, so c must not be a."""
    out, x = c.detach().numpy(), a.detach().numpy()
    for i in range(len(x)):
        out[i] = x[i] + x[-1 - i]


def write_mirror_checked(c, a):
    if c.untyped_storage().data_ptr() == a.untyped_storage().data_ptr():
        raise RuntimeError("mirror: c shares memory with a; pass a clone()")
    write_mirror(c, a)


def mirror_functional(a):
    calls.append("functional")
    c = torch.empty_like(a)
    write_mirror(c, a)
    return c


def mirror_out(a, out):
    calls.append("out")
    write_mirror_checked(out, a)
    return out


def mirror_inplace(a):
    write_mirror(a, a.clone())
    return a


def define_mirror(name, out_tags, inplace_tags):
    """The four kinds. Only out= and in-place return what they have written."""
    define(f"{name}(Tensor a) -> Tensor", mirror_functional, torch.empty_like)
    define(f"{name}_into(Tensor(a!) c, Tensor a) -> ()", write_mirror, lambda c, a: None)
    define(f"{name}.out(Tensor a, *, Tensor(a!) out) -> Tensor(a!)", mirror_out, lambda a, out: out, out_tags)
    define(f"{name}_(Tensor(a!) a) -> Tensor(a!)", mirror_inplace, lambda a: a, inplace_tags)


define_mirror("mirror", (), ())
HAS_TAGS = hasattr(torch.Tag, "out") and hasattr(torch.Tag, "inplace")
if HAS_TAGS:
    define_mirror("tagged", (torch.Tag.out,), (torch.Tag.inplace,))
define("checked_into(Tensor(a!) c, Tensor a) -> ()", write_mirror_checked, lambda c, a: None)
define("same(Tensor a) -> Tensor", lambda a: a, torch.empty_like)
define("copied(Tensor a) -> Tensor", lambda a: a.clone(), torch.empty_like)
define("note(Tensor a) -> ()", lambda a: calls.append(a.sum().item()), lambda a: None)
define(
    "note_in(Tensor(a!) state, Tensor a) -> ()", lambda state, a: calls.append(a.sum().item()), lambda state, a: None
)
define("where(Tensor(a!) c, Tensor a) -> ()", lambda c, a: calls.append(c.data_ptr()), lambda c, a: None)
for tag in ("none", "flexible_layout", "needs_fixed_stride_order", "needs_exact_strides"):
    tags = [getattr(torch.Tag, tag)] if tag != "none" else []
    define(f"strides_{tag}(Tensor a) -> ()", lambda a: calls.append(a.stride()), lambda a: None, tags)
    torch.fx.node.has_side_effect(getattr(torch.ops.kinds, f"strides_{tag}").default)  # so that no call is removed
for name, tags in {"step": (), "step_tagged": (torch.Tag.cudagraph_unsafe,)}.items():
    define(f"{name}(Tensor a) -> Tensor", lambda a: a * host["step"], torch.empty_like, tags, "CUDA")


@torch.library.custom_op("kinds::note_effect", mutates_args=())
def note_effect(a: torch.Tensor) -> None:
    calls.append(a.sum().item())


note_effect.register_fake(lambda a: None)
note_effect.register_effect(torch.library.EffectType.ORDERED)
ops = torch.ops.kinds


def attempt(function, *arguments, is_compiled=True, **options):
    """The result as text, or the error's name. Each call compiles anew."""
    torch.compiler.reset()
    calls.clear()
    try:
        result = torch.compile(function, fullgraph=True, **options)(*arguments) if is_compiled else function(*arguments)
        results = result if isinstance(result, tuple) else (result,)
        return ", ".join(str(x.tolist()) for x in results if x is not None)
    except Exception as error:  # of many classes, which differ from version to version
        return textwrap.shorten(f"{type(error).__name__}: {error}", 120, placeholder=" ...")


def numbers():
    return torch.arange(1.0, 5.0)


def compare(function, careless, careful):
    """`function(operator, a)`: careless without torch.compile, then both with it."""
    return {
        "expected": attempt(lambda a: function(careless, a), numbers(), is_compiled=False),
        "careless": attempt(lambda a: function(careless, a), numbers()),
        "careful": attempt(lambda a: function(careful, a), numbers()),
    }


def returned():
    """a functional operator returns its input, so the compiler reuses memory that is still needed"""

    def same_then_mirror(operator, a):
        y = operator(2 * a)
        return y, ops.mirror(3 * y)

    return compare(same_then_mirror, ops.same, ops.copied)


def aliased():
    """y = x.clone(); op(y, x) is compiled as op(x, x)"""

    def into_clone(operator, a):
        x = 2 * a
        y = x.clone()
        operator(y, x)
        return y

    rows = compare(into_clone, ops.mirror_into, ops.checked_into)
    return rows | {"functional": attempt(lambda a: ops.mirror(2 * a), numbers())}


def version():
    """a kernel writes a tensor that autograd has saved, and does not raise its version counter"""

    def gradient(write):
        a = torch.ones(2, requires_grad=True)
        y = a.exp()  # the backward pass needs y
        with torch.no_grad():
            write(y)
        y.sum().backward()
        return a.grad

    def careful(y):
        ops.mirror_into(y, y.clone())
        torch.autograd.graph.increment_version(y)

    writes = {"expected": lambda y: y.mul_(2), "careless": lambda y: ops.mirror_into(y, y.clone()), "careful": careful}
    return {label: attempt(gradient, write, is_compiled=False) for label, write in writes.items()}


def effect():
    """the compiler removes an operator whose result is not used, although it does something else"""
    state = torch.zeros(1)

    def noted(operator, a):
        operator(a)
        operator(3 * a)
        return a + 1

    def log(operator, is_compiled):
        attempt(lambda a: noted(operator, a), numbers(), is_compiled=is_compiled)
        return str(calls)

    rows = {"expected": log(ops.note, False), "careless": log(ops.note, True), "careful": log(note_effect, True)}
    return rows | {"written": log(lambda a: ops.note_in(state, a), True)}


def strides():
    """an operator's tag lets the compiler change the strides of what it passes in"""
    convolution, x = torch.nn.Conv2d(8, 8, 3).requires_grad_(False), torch.ones(1, 8, 9, 9)

    def seen(tag, is_compiled=True):
        operator = getattr(ops, f"strides_{tag}")
        attempt(lambda x: operator(convolution(x)[..., :5]), x, is_compiled=is_compiled)
        return str(calls[-1])

    rows = {"expected": seen("none", False), "careless": seen("flexible_layout"), "careful": seen("none")}
    return rows | {"exact": seen("needs_exact_strides"), "order": seen("needs_fixed_stride_order")}


def returning():
    """out= and in-place return what they have written, which needs a tag"""
    rows = compare(lambda operator, a: operator(a + 1), ops.mirror_, ops.tagged_ if HAS_TAGS else ops.mirror)
    if HAS_TAGS:
        return rows | {"out=": attempt(lambda a: ops.tagged.out(a + 1, out=torch.empty_like(a)), numbers())}
    return rows | {"careful": "this torch has no torch.Tag.out and torch.Tag.inplace; return ()"}


def lowered():
    """the compiler calls the .out overload in place of the functional one, and plans its memory"""

    def kernel(operator, is_compiled):
        attempt(lambda a: operator(2 * a), numbers(), is_compiled=is_compiled)
        return calls[-1]

    tagged = ops.tagged if HAS_TAGS else ops.mirror
    return {"eager": kernel(tagged, False), "untagged": kernel(ops.mirror, True), "tagged": kernel(tagged, True)}


def copied():
    """which memory the kernel gets, if a compiled function writes its argument c"""

    def place(**options):
        c = numbers()
        attempt(lambda c: ops.where(c, 2 * c), c, **options)
        return "that of c" if calls[-1] == c.data_ptr() else "a copy's, copied back afterwards"

    return {"eager": place(is_compiled=False), "inductor": place(), "aot_eager": place(backend="aot_eager")}


def graph():
    """the host decides something in each call, and a CUDA graph repeats the decision that it has recorded"""

    def steps(operator, mode):
        compiled = torch.compile(lambda a: operator(a) + 1, mode=mode)
        results = []
        for host["step"] in range(5):
            results.append(compiled(torch.ones(1, device="cuda")).item())
        return str(results)

    modes = {"expected": (ops.step, "default"), "careless": (ops.step, "reduce-overhead")}
    modes["careful"] = (ops.step_tagged, "reduce-overhead")
    return {label: steps(*pair) for label, pair in modes.items()}


TRAPS = {f.__name__: f for f in (returned, aliased, version, effect, strides, returning, lowered, copied, graph)}


def main():
    if unknown := set(sys.argv[1:]) - set(TRAPS):
        sys.exit(f"kinds.py: {', '.join(unknown)}: unknown. Choose from {', '.join(TRAPS)}.")
    print(f"torch {torch.__version__}\n")
    for name in sys.argv[1:] or TRAPS:
        print(f"{name}: {TRAPS[name].__doc__}")
        if name == "graph" and not torch.cuda.is_available():
            print("  not shown here: needs a GPU\n")
            continue
        for label, value in TRAPS[name]().items():
            print(f"  {label:11} {value}")
        print(flush=True)


if __name__ == "__main__":
    main()
