"""Whose fault is it? Some operators are right, and their description or torch is not; some crash for another reason."""

import ast
import builtins
import dataclasses
import importlib
import mmap
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from lab.referee import Operator, judge
from lab.referee.gradients import gradient_is_right
from lab.referee.judge import ask, ask_opcheck, attempt
from lab.referee.memory import memory_does_not_grow
from lab.referee.modes import modes_see_it
from lab.referee.processes import dies_alone
from lab.referee.registry import CHECKS
from lab.referee.report import reproducer
from lab.referee.trial import elements_with
from lab.referee.values import mixed_dtypes_are_right
from lab.referee.writing import results_are_new

pytestmark = pytest.mark.usefixtures("forks")

ROOT = Path(__file__).parents[1]
library = torch.library.Library("verdicts", "DEF")


def three(device):
    return (torch.randn(3, device=device),)


def doubled(x):
    return x * 2


def found_by(operator, *checks):
    return {finding.check: finding for finding in judge(operator, checks=checks)}


def test_integers_of_two_dtypes():
    """The result is floating-point, so it may differ by a rounding."""
    inputs = lambda device: (torch.randn(5, device=device), torch.tensor([3, 1, 7], device=device))  # noqa: E731
    operator = Operator("a sum", lambda x, n: (x.double().sum() * n / 3).float(), inputs, lambda x, n: x.sum() * n / 3)
    verdict, message, _ = attempt(partial(mixed_dtypes_are_right, place=(1,), dtype=torch.int32), operator, "cpu")
    assert verdict == "right", message


def by_division(x, k):
    return x * (1 / k)


@pytest.mark.parametrize(("call", "verdict"), [(lambda x, k: x * (1 / k), "right"), (by_division, "error")])
def test_an_error_in_the_description(call, verdict):
    """Of a lambda, which belongs to the description; an error of the function that it describes does count."""
    operator = Operator("a quotient", call, lambda device: (*three(device), 2), lambda x, k: x / k)
    assert found_by(operator, "arguments")["arguments"].verdict == verdict


def test_an_autograd_kernel_that_calls_another_operator():
    """A dispatch mode sees the other one, and opcheck has no arguments to take."""
    for name, key, kernel in (
        ("inner", "CPU", doubled),
        ("outer", "CPU", doubled),
        ("outer", "Autograd", lambda x: torch.ops.verdicts.inner(x)),
    ):
        if key == "CPU":
            library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, kernel, key)
    modes_see_it(Operator("verdicts::outer", inputs=three), "cpu")
    bypassed = Operator("verdicts::outer", call=lambda x: torch.ops.verdicts.inner(x), inputs=three)
    assert "sees no call" in attempt(modes_see_it, bypassed, "cpu")[1]
    tests, reason = ask_opcheck(Operator("verdicts::outer", inputs=three), "cpu")
    assert not tests
    assert "sees no call" in reason


def test_a_crash_is_not_hidden():
    """By a silent finding of another input."""

    def pick(x, index, boxes):
        if boxes.isnan().any():
            os.kill(os.getpid(), signal.SIGSEGV)
        return x[index.clamp(0, 6)] + boxes.sum()

    def reference(x, index, boxes):
        if (index < 0).any():
            raise RuntimeError("refused")
        return x[index] + boxes.sum()

    def inputs(device):
        return torch.randn(7, device=device), torch.tensor([2, 3], device=device), torch.randn(4, device=device)

    found = found_by(Operator("a choice", pick, inputs, reference), "garbage_values", "special_values")
    assert (found["garbage_values"].verdict, found["garbage_values"].inputs) == ("wrong", [1])
    assert (found["special_values"].verdict, found["special_values"].inputs) == ("crash", [2])


def die(device):
    os.kill(os.getpid(), signal.SIGSEGV)


def fail(device):
    raise RuntimeError("torch refuses")


@pytest.mark.parametrize(("without", "verdict"), [(die, "not applicable"), (fail, "crash"), (None, "crash")])
def test_a_crash_of_torchs_own(monkeypatch, without, verdict):
    """Where torch dies without the operator, too, the operator is not to blame."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    check = dataclasses.replace(CHECKS["strides"], without=without)
    x = lambda device: (torch.ones(3, device=device),)  # noqa: E731
    operator = Operator("dies with views", lambda x: x * 2 if x.is_contiguous() else die("cpu"), x, lambda x: x * 2)
    found = ask(operator, "cpu", check)
    assert found.verdict == verdict
    assert "SIGSEGV" in found.message


def test_an_exit_is_not_excused(monkeypatch):
    """That torch dies without the operator, too, does not tell why the operator ends the process."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    check = dataclasses.replace(CHECKS["strides"], without=die)
    x = lambda device: (torch.ones(3, device=device),)  # noqa: E731
    operator = Operator("exits", lambda x: x * 2 if x.is_contiguous() else os._exit(3), x, lambda x: x * 2)
    found = ask(operator, "cpu", check)
    assert (found.verdict, "exit status 3" in found.message) == ("crash", True)


def test_without_a_compiler():
    """That torch cannot compile here says nothing of the operator."""
    with torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}):
        found = ask(Operator("double", doubled, three, doubled), "cpu", CHECKS["compiled"])
    assert found.verdict == "not applicable"
    assert "no C++ compiler" in found.message


def test_what_a_process_starts_ends_with_it(monkeypatch, tmp_path):
    """Also where torch alone is tried: a compiler that it has started does not run on."""
    program = "import subprocess, time\ndef hang(file):\n    child = subprocess.Popen(['sleep', '100'])\n"
    program += "    open(file, 'w').write(str(child.pid))\n    time.sleep(100)\n"
    (tmp_path / "hanging.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert not dies_alone(importlib.import_module("hanging").hang, str(tmp_path / "pid"), 3)
    status = Path("/proc", (tmp_path / "pid").read_text(), "status")
    limit = time.monotonic() + 10  # to be killed takes a moment
    while (runs := status.exists() and "State:\tZ" not in status.read_text()) and time.monotonic() < limit:
        time.sleep(0.01)
    assert not runs


@pytest.mark.thorough
@pytest.mark.anywhere
def test_a_package_of_torch():
    """It is loaded, or the process dies; an error would make each crash the operator's."""
    program = "from lab.referee.registry import CHECKS; import lab.referee; CHECKS['ahead_of_time'].without('cpu')"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -signal.SIGSEGV), done.stderr


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "right"), (2.0, "wrong")])
def test_a_gradient_that_jumps(factor, verdict):
    """At 1 - 2^-11, float16 rounds x + 8 up to a whole number, and the reference does not."""

    class Steps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.steps = (x + 8).floor()
            return ctx.steps * x

        @staticmethod
        def backward(ctx, grad):
            return factor * grad * ctx.steps

    def inputs(device):
        x = torch.linspace(0.1, 0.6, 400, device=device)
        x[3] = 1 - 2**-11
        return (x,)

    operator = Operator("steps", Steps.apply, inputs, lambda x: (x + 8).floor() * x, gradients=(0,))
    found, message, _ = attempt(partial(gradient_is_right, dtype=torch.float16), operator, "cpu")
    assert found == verdict, message


@pytest.mark.parametrize(
    ("reference", "seconds"),
    [
        (lambda x: os.kill(os.getpid(), signal.SIGKILL) if len(x) > 300 else x * 2, 60),  # as where no memory is left
        pytest.param(lambda x: time.sleep(99) if len(x) > 300 else x * 2, 3, marks=pytest.mark.thorough),
        (lambda x: (x[:, None] - x[None, :]).new_zeros(len(x)) + x * 2, 60),  # compares all with all
    ],
)
def test_a_reference_that_needs_much(reference, seconds, monkeypatch):
    monkeypatch.setattr("lab.referee.values._free_memory", lambda device: 2**30)
    operator = Operator("doubled", doubled, three, reference, sizes={"all": [(0, 0)]})
    operator.learnt = {"written": [], "returned": [], "by_reference": [], "returned_by_reference": []}
    found = ask(operator, "cpu", dataclasses.replace(CHECKS["large"], seconds=seconds))
    assert found.verdict == "not applicable", found.message
    assert "the reference" in found.message


def test_the_cause_of_a_lost_tangent():
    """What is named is what registered the gradient."""
    operator = torch.library.custom_op(
        "verdicts::late", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    operator.register_autograd(lambda ctx, grad: grad * 2)
    (found,) = judge(Operator("verdicts::late", inputs=three, reference=doubled, gradients=(0,)), checks=["tangents"])
    assert found.is_torchs_default
    assert "registered by register_autograd" in found.message
    assert "custom_op" not in found.message


def test_tangents_where_another_input_has_no_gradient():
    """Which is refused, but that is another question."""

    def scaled(x, table):
        if table.requires_grad:
            raise RuntimeError("table has no gradient")
        return x * table

    inputs = lambda device: (torch.randn(3, device=device), torch.randn(3, device=device))  # noqa: E731
    (found,) = judge(Operator("scaled", scaled, inputs, torch.mul, gradients=(0,)), checks=["tangents"])
    assert found.verdict == "right", found.message


def trials():
    """The functions that a check may yield."""
    modules = {check.trials.__globals__["__name__"]: check.trials.__globals__ for check in CHECKS.values()}
    for home, names in modules.items():
        for value in list(names.values()):
            code = getattr(value, "__code__", None)
            is_trial = code and value.__module__ == home and code.co_varnames[:2] == ("operator", "device")
            if is_trial and not value.__name__.startswith("_") and value.__name__ not in CHECKS:
                yield value


def test_reproducers_import_what_they_use():
    """Each name, and no other."""
    operator = Operator("doubled", doubled, three)
    for function in trials():
        program = ast.parse(reproducer(operator, "cpu", function, "", "a message"))
        imports = [each for each in program.body if isinstance(each, (ast.Import, ast.ImportFrom))]
        imported = {alias.asname or alias.name for each in imports for alias in each.names}
        names = [node for node in ast.walk(program) if isinstance(node, ast.Name)]
        read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
        made = {node.id for node in names if not isinstance(node.ctx, ast.Load)} | {"__file__"}
        made |= {node.arg for node in ast.walk(program) if isinstance(node, ast.arg)}
        made |= {node.name for node in ast.walk(program) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        made |= {node.name for node in ast.walk(program) if isinstance(node, ast.ExceptHandler)}
        made |= {
            alias.asname or alias.name for n in ast.walk(program) if isinstance(n, ast.ImportFrom) for alias in n.names
        }
        assert imported <= read, (function.__name__, imported - read)
        assert not read - made - imported - set(vars(builtins)), function.__name__


def test_reproducers_hold_no_path_of_this_machine(monkeypatch):
    operator = Operator("doubled", doubled, three, title="no path")
    monkeypatch.setattr(Operator, "file", str(ROOT / "tests/specs/doubled.py"))
    monkeypatch.chdir(ROOT)
    assert "load('tests/specs/doubled.py', 'no path')" in reproducer(operator, "cpu", results_are_new, "", "a message")


def top_two(x):
    return tuple(torch.topk(x, 2, 1))


def top_two_by_sort(x):
    return tuple(y[:, :2].contiguous() for y in torch.sort(x, 1, descending=True))


class SineAndCosine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, first, second):
        (x,) = ctx.saved_tensors
        return first * x.cos() - second * x.sin()


def sine_and_cosine(x):
    return SineAndCosine.apply(x)


def normalized(x):
    return torch.nn.functional.layer_norm(x, x.shape[1:], torch.ones_like(x[0]), torch.zeros_like(x[0]))


def normalized_by_hand(x):
    return (x - x.mean(1, keepdim=True)) / (x.var(1, correction=0, keepdim=True) + 1e-5).sqrt()


@pytest.mark.parametrize(
    ("call", "reference", "checks"),
    [
        (top_two, top_two_by_sort, ["odd_sizes", "gradient_sizes"]),  # equal numbers have no order
        (normalized, normalized_by_hand, ["gradient_sizes"]),  # with one column, or two, the gradient is almost 0
        (sine_and_cosine, lambda x: (x.sin(), x.cos()), ["second_derivatives"]),  # squares give 1
    ],
)
def test_ties_and_roundings_are_no_findings(call, reference, checks):
    sizes = {"columns": [(0, 1)]}
    inputs = lambda device: (torch.randn(3, 5, device=device),)  # noqa: E731
    operator = Operator("a plain function", call, inputs, reference, gradients=(0,), sizes=sizes)
    findings = judge(operator, checks=checks)
    assert not [finding for finding in findings if finding.is_wrong], findings


@pytest.mark.parametrize("call", [lambda x: x.transpose(0, 1), torch.fft.rfft])
def test_views_and_complex_results_are_no_findings(call):
    """A view requires a gradient under no_grad, too, and torch.autograd has gradients of complex results."""
    inputs = lambda device: (torch.randn(3, 6, device=device),)  # noqa: E731
    operator = Operator("a plain function", call, inputs, lambda x: call(x * 1), gradients=(0,))
    findings = judge(operator, checks=["without_gradients", "gradients", "settings"])
    assert not [finding for finding in findings if finding.is_wrong], findings


def test_a_square_of_large_size_is_left_out():
    """Both dimensions grow together, and so does the memory."""
    inputs = lambda device: (torch.randn(4, 4, device=device),)  # noqa: E731
    operator = Operator("a plain function", lambda x: x * 2, inputs)
    assert elements_with(operator, operator.fresh("cpu"), "all of size 4", 1000) == 10**6


def pages(x):
    memory = mmap.mmap(-1, 2**15)
    memory.write(b"x" * 2**15)
    return memory


@pytest.mark.parametrize(("keep", "verdict"), [(pages, "right"), (torch.clone, "wrong")])
def test_a_leak_is_more_than_what_a_process_grows_by(keep, verdict):
    """The result has one element, and what malloc, Python and caches keep between two calls is larger."""
    kept = []

    def mean(x):
        kept.append(keep(x))
        return x.mean(0, keepdim=True)

    operator = Operator("a mean", mean, three, lambda x: x.mean(0, keepdim=True), sizes={"n": [(0, 0)]})
    found, message, _ = attempt(partial(memory_does_not_grow, group="n", size=2**18), operator, "cpu")
    assert found == verdict, message


def test_random_numbers_are_no_finding():
    """An operator whose author says that it takes some is called with the same ones, and so is its reference."""

    @torch.library.custom_op("verdicts::drop", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
    def drop(x: torch.Tensor) -> torch.Tensor:
        return x * (torch.rand(x.shape, dtype=x.dtype, device=x.device) > 0.5)

    drop.register_fake(torch.empty_like)
    reference = lambda x: x * (torch.rand_like(x) > 0.5)  # noqa: E731
    names = ["values", "odd_sizes", "stale", "kept_results", "settings", "fake", "repeated", "random_numbers", "vmap"]
    names += [
        "traced",
        "traced_compiled",
        "threads",
        "exported",
        "interleaved",
        "without_gradients",
        "callers_settings",
    ]
    found = found_by(Operator("verdicts::drop", inputs=three, reference=reference), *names)
    assert not [finding for finding in found.values() if finding.is_wrong], found
    assert {"values", "odd_sizes", "stale"} <= {name for name, each in found.items() if each.verdict == "right"}
    wrong = found_by(Operator("verdicts::drop", inputs=three, reference=lambda x: 2 * reference(x)), "values")
    assert wrong["values"].verdict == "wrong"


class Scaled(torch.autograd.Function):
    """a * b, whose gradient has none of its own."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad * b, grad * a


def test_once_differentiable_refuses():
    """As the check's own cure advises."""
    two = lambda device: (*three(device), *three(device))  # noqa: E731
    found = found_by(Operator("scaled", Scaled.apply, two, torch.mul, (0, 1)), "gradients", "second_derivatives")
    assert [found[name].verdict for name in ("gradients", "second_derivatives")] == ["right", "refused"]
    assert "once_differentiable" in found["second_derivatives"].message


class Centred(torch.autograd.Function):
    """x - mean(x): of a constant gradient only roundings are left."""

    @staticmethod
    def forward(ctx, x):
        return x - x.mean()

    @staticmethod
    def backward(ctx, grad):
        return grad - grad.mean()


def test_roundings_and_precision_are_no_finding():
    """A gradient of 0 up to roundings; an operator that is more precise than its reference."""
    inputs = lambda device: (torch.randn(3, 6, device=device),)  # noqa: E731
    found = found_by(
        Operator("centred", Centred.apply, inputs, lambda x: x - x.mean(), (0,)), "gradients", "arriving_gradients"
    )
    assert [finding.verdict for finding in found.values()] == ["right", "right"], found

    def reference(x):
        return torch.linalg.slogdet(x @ x.mT + torch.eye(len(x), dtype=x.dtype, device=x.device))[1]

    precise = Operator("precise", lambda x: reference(x.double()).to(x.dtype), inputs, reference, (0,))
    assert found_by(precise, "gradient_sizes")["gradient_sizes"].verdict == "right"


def test_a_number_is_a_result():
    operator = Operator("a count", torch.numel, three, torch.numel)
    found = found_by(operator, "values", "callers_settings", "modes_and_subclasses", "ahead_of_time")
    assert not [finding for finding in found.values() if finding.is_wrong], found


def test_a_gradient_that_cannot_be_asked_for():
    """The description says that there is one, so an error is no refusal."""
    library.define("broken(Tensor x) -> Tensor")
    library.impl("broken", doubled, "CPU")

    def setup(ctx, input, output):  # torch passes `inputs`
        pass

    torch.library.register_autograd("verdicts::broken", lambda ctx, grad: 2 * grad, setup_context=setup, lib=library)
    found = found_by(Operator("verdicts::broken", inputs=three, reference=doubled, gradients=(0,)), "gradients")
    assert found["gradients"].verdict == "error"
    assert "gradients (0,): TypeError: " in found["gradients"].message


def raw(x):
    """The memory of a tensor, without its negative bit."""
    return torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())


@pytest.mark.parametrize(
    ("read_saved", "read_arriving", "check"),
    [
        (lambda x: x, lambda grad: grad, None),
        (lambda x: x.as_strided(x.shape, torch.empty(x.shape).stride()), lambda grad: grad, "gradients"),
        (lambda x: x, raw, "arriving_gradients"),
    ],
)
def test_backward_reads_strides_and_the_negative_bit(read_saved, read_arriving, check):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            return 2 * read_saved(ctx.saved_tensors[0]) * read_arriving(grad)

    inputs = lambda device: (torch.randn(3, 6, device=device),)  # noqa: E731
    operator = Operator("a square", Square.apply, inputs, torch.square, gradients=(0,))
    found = found_by(operator, "gradients", "arriving_gradients")
    assert [name for name, finding in found.items() if finding.is_wrong] == [check] * bool(check), found


@pytest.mark.parametrize(
    ("norm", "verdict"), [(torch.linalg.vector_norm, "right"), (lambda x: x.square().sum().sqrt(), "wrong")]
)
def test_a_gradient_at_0(norm, verdict):
    """NaN is wrong where the reference has a number."""
    operator = Operator("a norm", norm, three, torch.linalg.vector_norm, gradients=(0,))
    assert found_by(operator, "gradients")["gradients"].verdict == verdict
