"""What docs/stable.md and docs/port_python.md say: each schema type has its C++ type, and what stands in Python around
an operator works in eager and in compiled code."""

import contextlib
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parent.parent
PORT = ROOT / "examples" / "port"
STABLE = (ROOT / "docs" / "stable.md").read_text()
TARGET = "-DTORCH_TARGET_VERSION=0x020a000000000000"
X = torch.tensor([1.0, 2.0])


@pytest.fixture(scope="module")
def types(once):
    """examples/port/schema_types.cpp, compiled for torch 2.10 and loaded."""
    torch_folder = Path(torch.__file__).parent

    def make(folder):
        folder.mkdir()
        command = ["c++", "-O1", "-std=c++17", "-shared", "-fPIC", TARGET, "-isystem", torch_folder / "include"]
        command += [PORT / "schema_types.cpp", "-o", folder / "schema_types.so", "-L", torch_folder / "lib"]
        subprocess.run([*command, "-Wl,--no-as-needed", "-ltorch"], check=True)

    torch.ops.load_library(once("schema types", make) / "schema_types.so")
    return torch.ops.schema_types


SAME = {  # operators that return their argument
    "tensor": [X],
    "optional_tensor": [X, None],
    "tensors": [[X, X + 1], []],
    "optional_tensors": [[X, None, X]],
    "integer": [2**62, -1],
    "size": [2**62],
    "number": [0.1, -2.5],
    "flag": [True, False],
    "text": ["", "größer"],
    "optional_number": [0.1, None],
    "integers": [[2**40, -1], []],
    "pair": [[3, 4]],
    "numbers": [[0.1, 2.0]],
    "texts": [["a", "bc"], []],
    "optional_integers": [[1, 2], None],
    "device": [torch.device("cpu"), torch.device("cuda:1")],
}
OTHERS = [  # operator, arguments, result
    ("is_defined", (X,), True),
    ("is_defined", (None,), False),  # None passes for a Tensor
    ("length", ("abc",), 3),
    ("pair", (5,), [5, 5]),  # int[2] takes one number for both
    ("product", ([2, 3, 4],), 24),
    ("count_true", ([True, False, True],), 2),
    ("dtype", (torch.bfloat16,), 15),  # Python gets numbers
    ("layout", (torch.strided,), 0),
    ("memory_format", (torch.channels_last,), 2),
    ("several", (X, True), (X, X, 1)),
    ("several", (X, False), (X, None, 1)),
    ("filled", (X,), X.new_ones(2)),
]
IMAGE = torch.zeros(2, 3, 4, 5)
DENSE = [IMAGE, IMAGE.transpose(1, 3), IMAGE.to(memory_format=torch.channels_last), IMAGE[:1], IMAGE[:0, ::2]]
GAPS = [IMAGE[..., ::2], IMAGE[:, :2], X.expand(3, 2), torch.zeros(8).as_strided((2, 3), (3, 2))]


def assert_same(found, right):
    assert type(found) is type(right)
    if isinstance(right, list | tuple):
        assert len(found) == len(right)
        for x, y in zip(found, right, strict=True):
            assert_same(x, y)
    else:
        assert torch.equal(found, right) if isinstance(right, torch.Tensor) else found == right


@pytest.mark.thorough
@pytest.mark.anywhere
def test_schema_types(types):
    for name, arguments in SAME.items():
        for x in arguments:
            assert_same(getattr(types, name)(x), x)
    for name, arguments, right in OTHERS:
        assert_same(getattr(types, name)(*arguments), right)
    assert_same(types.filled(X, value=3, how="minus"), X * 0 - 3)
    types.write(x := X.clone())
    types.write_all([y := X.clone(), z := X.clone()])
    assert x.tolist() == y.tolist() == z.tolist() == [3, 3]
    assert [*map(types.is_dense, DENSE + GAPS)] == [True] * len(DENSE) + [False] * len(GAPS)
    calls = torch.zeros(1, dtype=torch.int64)
    assert torch.equal(types.count_and_double(calls, X), 2 * X)
    assert calls.item() == 1


@pytest.mark.thorough
@pytest.mark.anywhere
def test_values_that_change_without_a_word(types):
    """The page names them: fill_ takes a double."""
    types.filled(x := torch.zeros(1, dtype=torch.int64), value=2.0**53 + 1)
    assert types.filled(x, value=2**53 + 1).item() == 2**53


def test_table_of_schema_types():
    """Each row stands in the file as a schema and as a C++ type."""
    text = (PORT / "schema_types.cpp").read_text()
    table = STABLE.partition("## Schema types and C++ types")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:4] for line in table.splitlines() if line.startswith("| `")]
    assert rows
    for schema, *types in rows:
        for each in re.findall(r"`([^`]+)`", schema):
            name = each.replace("->", "").strip()
            assert re.search(rf"[( ]{re.escape(name)}[ )\"]", text) or name in text, each
        for each in re.findall(r"`([^`]+)`", " ".join(types)):
            assert each.removeprefix("torch::stable::") in text, each
    called = {*SAME, *(name for name, *_ in OTHERS), "write", "write_all", "count_and_double", "is_dense"}
    assert called == {*re.findall(r'm\.def\("(\w+)', text)}


@pytest.mark.thorough
def test_dispatch_needs_another_header(tmp_path):
    """Dispatch_v2.h by itself does not compile; with the header that the page names it does."""
    body = """
    #include <torch/headeronly/core/Dispatch_v2.h>
    constexpr auto K = torch::headeronly::ScalarType::Float;
    void f(torch::headeronly::ScalarType t) { THO_DISPATCH_V2(t, "f", [] { (void)sizeof(scalar_t); }, K); }
    """
    command = ["c++", "-std=c++17", "-fsyntax-only", TARGET, "-isystem", Path(torch.__file__).parent / "include"]
    for head, is_right in {"": False, "#include <torch/headeronly/util/Exception.h>": True}.items():
        (tmp_path / "dispatch.cpp").write_text(head + body)
        done = subprocess.run([*command, tmp_path / "dispatch.cpp"], capture_output=True, text=True)
        assert (done.returncode == 0) == is_right, done.stderr
        assert is_right or "STD_TORCH_CHECK" in done.stderr


@pytest.fixture(scope="module")
def functions():
    sys.path.insert(0, str(PORT))
    return importlib.import_module("functions")


@contextlib.contextmanager
def library(schema, function):
    """An operator that exists only here."""
    name = schema.partition("(")[0]
    with torch.library._scoped_library("port", "FRAGMENT") as lib:
        lib.define(schema)
        lib.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"port::{name}", function, lib=lib)
        yield


def gradient(function, *inputs):
    leaves = [x.clone().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*leaves).sum(), leaves)


@pytest.mark.thorough
@pytest.mark.anywhere
class TestFunctions:
    def test_kept_function(self, functions):
        x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
        for call in (functions.Cube.apply, torch.compile(functions.Cube.apply, fullgraph=True)):
            assert gradient(call, x)[0].tolist() == [3, 12, 27]
        assert torch.autograd.gradgradcheck(functions.Cube.apply, x.requires_grad_())
        with pytest.raises(RuntimeError, match="setup_context"):
            torch.func.grad(lambda x: functions.Cube.apply(x).sum())(x.detach())

    def test_refused_by_compile(self, functions):
        with pytest.raises(RuntimeError, match="does not currently support double backward"):
            functions.twice(torch.compile(functions.Cube.apply, fullgraph=True), X.clone().requires_grad_())
        made = []

        def call(x):
            if not made:
                made.append(functions.made_in_a_function())
            return made[0].apply(x)

        with pytest.raises(torch._dynamo.exc.Unsupported, match="__build_class__"):
            torch.compile(call, fullgraph=True)(X)
        made.append(functions.made_in_a_function())  # made before: it passes
        assert torch.equal(torch.compile(call, fullgraph=True)(X), X**3)

    def test_writing_with_a_gradient(self, functions):
        def step(x, y):
            return functions.add_into(2 * x, y) * y

        x, y = torch.randn(2, 4, dtype=torch.float64)
        assert torch.autograd.gradcheck(step, (x.clone().requires_grad_(), y.clone().requires_grad_()))
        for found, right in zip(gradient(torch.compile(step, fullgraph=True), x, y), gradient(step, x, y), strict=True):
            torch.testing.assert_close(found, right)
        with pytest.raises(RuntimeError, match="leaf Variable"):
            functions.add_into(x.requires_grad_(), y)

    def test_writing_into_an_argument(self, functions):
        """Where the function is compiled, only the result has the gradient; in eager mode the caller's tensor, too."""
        x = X.clone().requires_grad_()
        for call, has_gradient in (
            (functions.add_into, True),
            (torch.compile(functions.add_into, fullgraph=True), False),
        ):
            y = call(out := torch.zeros(2), x)
            assert (out.tolist(), out.requires_grad, y.requires_grad) == (X.tolist(), has_gradient, True)
            assert torch.autograd.grad(y.sum(), x)[0].tolist() == [1, 1]

    def test_writes_and_returns(self, functions):
        def step(calls, x):
            return functions.ops.count_and_double(calls, functions.ops.count_and_double(calls, x)), calls + 0

        for call in (step, torch.compile(step, fullgraph=True)):
            y, seen = call(calls := torch.zeros(1), X)
            assert (y.tolist(), seen.item(), calls.item()) == ((4 * X).tolist(), 2, 2)
        torch.library.opcheck(functions.ops.count_and_double.default, (torch.zeros(1), X))
        with pytest.raises(RuntimeError, match="non-functional"):
            torch.library.register_autograd("port::count_and_double", lambda ctx, grad: (None, 2 * grad))

    def test_result_without_a_gradient(self, functions):
        for call in (functions.ops.halve, torch.compile(functions.ops.halve, fullgraph=True)):
            half, largest = call(X.clone().requires_grad_())
            assert (half.requires_grad, largest.requires_grad) == (True, False)
        assert gradient(lambda x: functions.ops.halve(x)[0], X)[0].tolist() == [0.5, 0.5]
        with pytest.raises(RuntimeError, match="does not require grad"):
            gradient(lambda x: functions.ops.halve(x)[1], X)
        with library("unmarked(Tensor x) -> (Tensor, Tensor)", lambda x: (x / 2, 3 * x)):
            torch.library.register_autograd("port::unmarked", lambda ctx, grad, _: grad / 2)
            assert gradient(lambda x: functions.ops.unmarked(x)[1], X)[0].tolist() == [0, 0]  # without a word

    def test_scripted(self, functions):
        """A caller in TorchScript has the gradient, too."""

        @torch.jit.script
        def first(x: torch.Tensor):
            return torch.ops.port.halve(x)[0]

        assert gradient(first, X)[0].tolist() == [0.5, 0.5]

    def test_sizes_that_depend_on_data(self, functions):
        """One graph serves them all; and torch.export."""
        index = [torch.tensor(x) for x in ([0, 3, 3], [5, 1, 1], [0, 0, 0])]
        x = [torch.tensor(x) for x in ([0.0, 2.0, 3.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0])]
        for function, inputs in ((functions.histogram, index), (functions.ops.positions.default, x)):
            torch.compiler.reset()
            counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
            compiled = torch.compile(lambda x, f=function: f(x) + 1, fullgraph=True, backend=counter)
            for each in inputs:
                assert torch.equal(compiled(each), function(each) + 1)
            assert counter.frame_count == 1
            module = torch.nn.Module()
            module.forward = lambda x, f=function: f(x)
            exported = torch.export.export(module, (inputs[0],)).module()
            assert torch.equal(exported(inputs[1]), function(inputs[1]))

    def test_refused_sizes(self, functions):
        def branch(x):
            return x + 1 if functions.ops.positions(x).shape[0] > 1 else x

        with library("fixed(Tensor index, int n) -> Tensor", lambda index, n: index.new_zeros(n)):
            calls = {
                "data-dependent": (branch, X),
                "SymInt": (lambda x: functions.ops.fixed(x, x.max().item() + 1), torch.tensor([0, 3])),
            }
            for words, (function, x) in calls.items():
                with pytest.raises(Exception, match=words):
                    torch.compile(function, fullgraph=True)(x)


@pytest.mark.thorough
@pytest.mark.anywhere
def test_program(run):
    assert "halve [True, False]" in run("examples/port/functions.py").stdout


@pytest.mark.thorough
def test_cuda_names_compile(nvcc, tmp_path):
    """Atomics and packed accessors, for torch 2.10."""
    include, flags = f"-I{Path(torch.__file__).parent}/include", ["-std=c++17", "-arch=sm_80", TARGET]
    command = [nvcc, *flags, *cpp_extension.COMMON_NVCC_FLAGS, include, "-c", PORT / "names.cu"]
    subprocess.run([*command, "-o", tmp_path / "names.o"], check=True)


def test_reserved_random_numbers(cuda):
    """Python's way to torch's own stream of them, for a kernel: page 20."""
    generator = torch.Generator("cuda").manual_seed(3)
    if not hasattr(generator, "philox_state"):
        pytest.skip("needs torch 2.14")
    (seed, first, _), (_, second, _) = generator.philox_state(4), generator.philox_state(4)
    assert seed.item() == 3
    assert second.item() - first.item() == 4
