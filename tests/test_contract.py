"""The operators, as tests/contract.py asks for them. A lesson's own tests have what is its own."""

import pytest
import torch
import torch.nn.functional as F
from contract import Differentiable, NotDifferentiable, randn

NOT_FLOAT = "the dtype is not float32, float64, float16, bfloat16"


class TestAdd2(Differentiable):
    function, operator = "add2", "add2.add2"
    leaves, rows, error = (0, 1), {0: 1, 1: 1}, 0
    is_promoting = is_refused_on_meta = True
    test_autocast_refuses = None  # it promotes there, as a + b does

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def loaded(cls, add2):
        cls.lib = add2

    def op_calls(self, inputs):
        for view in (lambda x: x, lambda x: x.t(), lambda x: x[:0]):
            yield self.op, [view(x) for x in inputs]

    def by_torch(self, a, b):
        return a + b

    def inputs(self, device):
        return [randn(3, 6, device=device), randn(6, 3, device=device).t()]

    def wrong(self, inputs):
        a, b = inputs
        return {
            r"add2: b has shape \[3, 5\], expected \[3, 6\]": {1: b[:, 1:]},
            r"b has shape \[18\], expected \[3, 6\]": {1: b.flatten()},
            r"b has shape \[6\], expected \[3, 6\]": {1: b[0]},
            "b is float64, expected float32": {1: b.double()},
            f"{NOT_FLOAT}(integers)?": {0: a.int(), 1: b.int()},
            f"{NOT_FLOAT}(complex)?": {0: a.cfloat(), 1: b.cfloat()},
            f"{NOT_FLOAT}(bool)?": {0: a.bool(), 1: b.bool()},
            "b has type .*NoneType": {1: None},
            "b has type .*float": {1: 1.0},
            "b has type .*list": {1: [1.0]},
            f"{NOT_FLOAT}(float8)?": {0: a.to(torch.float8_e5m2), 1: b.to(torch.float8_e5m2)},
        }


class TestAdd2Operator(TestAdd2):
    test_compiled = test_compiled_sizes = None  # once for each operator

    def call(self, a, b):
        return torch.ops.add2.add2(a, b)

    def wrong(self, inputs):  # torch itself refuses what is no tensor
        return {words: changes for words, changes in super().wrong(inputs).items() if "has type" not in words}


class TestLaunch(NotDifferentiable):
    """torch_launch_add2(c, a, b, n), and then something that reads c."""

    operator, rows, strided, error = "add2.torch_launch_add2", {0: 0, 1: 0, 2: 0}, (1, 2), 0
    has_vmap, is_refused_on_meta = False, True
    loaded = TestAdd2.loaded
    test_compiled = None  # tests/operator/test_compile.py has it, with views

    def call(self, c, a, b, n=None):
        self.lib.torch_launch_add2(c, a, b, a.numel() if n is None else n)
        return c * 2

    def op_calls(self, inputs):
        for n in (18, 7):
            yield self.op, (*inputs, n)

    def inputs(self, device):
        return [torch.zeros(6, 3, device=device), *(randn(6, 3, device=device) for _ in "ab")]

    def wrong(self, inputs):
        c, a, b = inputs
        flat, nine = c.flatten(), {1: a.flatten()[:9], 2: b.flatten()[:9]}
        return {
            "n is 18, expected 0 to 15, all of c": {0: c[1:]},
            "expected 0 to 0, all of b": {2: b[:0]},
            "the dtype is not float32": {0: c.long()},
            "a is float16, expected float32": {1: a.half()},
            "b is float64, expected float32": {2: b.double()},
            r"c of shape \[3, 6\] is not contiguous": {0: c.t()},
            "c shares memory with a, but is not a itself": nine | {0: flat[1:10], 1: flat[:9]},
            "c shares memory with b": nine | {0: flat[:9], 2: flat[1:10]},
            "c shares memory with a(, but)?": {0: flat[:7], 1: flat[::2][:7], 2: nine[2][:7]},
        }


@pytest.mark.thorough
class TestRope(Differentiable):
    function, operator, reference = "rotate", "rope.rotate", "by_torch"
    folder, leaves, rows = "rope", (0,), {0: 2, 1: 0, 2: 0}
    strided = (0, 1, 2)

    def inputs(self, device):
        return [randn(2, 4, 6, 16, device=device), *(randn(6, 8, device=device) for _ in "cs")]

    def wrong(self, inputs):
        x, cos, _ = inputs
        return {
            r"x is Double": {0: x.double()},
            r"x has shape \[4, 6, 16\]": {0: x[0]},
            r"cos is Float\[5, 8\], expected Float\[6, 8\]": {1: cos[1:]},
            r"sin is Float\[6, 7\]": {2: cos[:, 1:]},
            "cos is None": {1: None},
        }

    def test_views(self, device):
        """A part of qkv; one row for all; half of d is no whole number of vectors; nothing at all."""
        for x in (
            torch.randn(2, 7, 3, 4, 16, device=device)[:, :, 1].transpose(1, 2),
            torch.randn(1, 1, 7, 16, device=device).expand(2, 4, 7, 16),
            torch.randn(2, 7, 4, 6, device=device).transpose(1, 2),
            torch.randn(2, 4, 0, 16, device=device),
        ):
            tables = [randn(x.shape[2], x.shape[3] // 2, device=device) for _ in "cs"]
            y = self.call(x, *tables)
            assert y.is_contiguous()
            self.assert_close(y, self.by_torch(x, *tables))

    def test_gradients_of_tables(self, device):
        """Refused, so none is lost without a word; torch.func has them, but no tables of which each row has its own."""
        x, cos, sin = self.inputs(device)
        with pytest.raises(RuntimeError, match="detach it"):
            self.call(x, cos, sin.clone().requires_grad_())
        with pytest.raises(NotImplementedError, match="must be the same for all"):
            torch.vmap(self.call, in_dims=(None, 0, None))(x, cos.expand(3, 6, 8), sin)
        for f in (torch.func.grad, lambda f: lambda sin: torch.func.jvp(f, (sin,), (sin,))[1]):
            functions = (self.call, self.by_torch)
            mine, right = (f(lambda sin, g=g: g(x, cos, sin).square().sum())(sin) for g in functions)
            torch.testing.assert_close(mine, right)


@pytest.mark.thorough
class TestGatedLinear(Differentiable):
    function, operator, reference = "gated_linear", "gated_linear.gated_linear", "reference"
    folder, module, leaves, rows, error = "matmul", "gated_linear", (0, 1), {0: 0}, 0.01
    is_promoting = True
    dtype = torch.bfloat16

    def inputs(self, device):
        return [randn(rows, 24, device=device, dtype=self.dtype) for rows in (6, 32)]

    def wrong(self, inputs):
        x, w = inputs
        dtype = "Double" if self.dtype == torch.float64 else "BFloat16"
        return {
            rf"x is {dtype}\[6, 23\], expected {dtype}\[6, 24\]": {0: x[:, 1:]},
            r"w is \[8, 24\], expected \[2 H, K\] with H a multiple of 8": {1: w[:8]},
            rf"x is {dtype}.*expected Float": {1: w.float()},
            "w is Int, expected Float, Double, Half or BFloat16": {0: x.int(), 1: w.int()},
            "w is ComplexFloat": {0: x.cfloat(), 1: w.cfloat()},
            "x has no dimension": {0: x[0, 0]},
            r"w is \[24\]": {1: w[0]},
            r"w is \[2, 16, 24\]": {1: w.view(2, 16, 24)},
            "x is None": {0: None},
            "w is None": {1: None},
        }


@pytest.mark.thorough
class TestGatedLinearFloat64(TestGatedLinear):
    dtype, error, is_promoting = torch.float64, 1e-12, False
    test_compiled = test_compiled_sizes = test_exported = None


@pytest.mark.thorough
class TestAddRmsNorm(Differentiable):
    function, operator, reference = "add_rms_norm", "add_rms_norm.add_rms_norm", "reference"
    folder, leaves, rows, error = "add_rms_norm", (0, 1, 2), {0: 0, 1: 0}, 1e-5
    is_promoting = True
    uncompiled = (("hessian", "cuda"),)  # of F.rms_norm: seen with torch 2.11

    def by_torch(self, *inputs):
        if torch.is_autocast_enabled("cuda"):  # everything becomes float32, as for F.rms_norm
            inputs = [x.float() for x in inputs]
        return super().by_torch(*inputs)

    def inputs(self, device):
        return [randn(4, 3, 16, device=device), randn(3, 4, 16, device=device).view(4, 3, 16), randn(16, device=device)]

    def op_calls(self, inputs):
        a, b, weight = inputs
        yield self.op, (*inputs, 1e-6)
        yield self.op, (a.transpose(0, 1), b.view(3, 4, 16), weight, 1e-6)
        _, s, rstd = self.op(a, b, weight, 1e-6)
        for ds in (b, None):
            yield torch.ops.add_rms_norm.add_rms_norm_backward.default, (a, ds, s, weight, rstd)

    def wrong(self, inputs):
        a, b, weight = inputs
        return {
            r"b is Float\[4, 3, 15\], expected Float\[4, 3, 16\]": {1: b[..., 1:]},
            r"weight is Float\[15\], expected Float\[16\]": {2: weight[1:]},
            r"weight is Float\[1, 16\]": {2: weight[None]},
            "no last dimension": {0: a[0, 0, 0], 1: b[0, 0, 0]},
            "b is Double": {1: b.double()},
            "weight is Half": {2: weight.half()},
            "expected float32, float64, float16 or bfloat16": {0: a.int(), 1: b.int(), 2: weight.int()},
            "weight is None": {2: None},
            "b is None": {1: None},
        }


@pytest.mark.thorough
class TestInt4Linear(Differentiable):
    function, operator = "int4_linear", "int4_linear.int4_linear"
    folder, leaves, rows, error = "int4_linear", (0, 4), {0: 0}, 0.01

    def op_calls(self, inputs):
        yield self.op, inputs
        yield torch.ops.int4_linear.dequantize.default, inputs[1:4]

    def by_torch(self, x, packed, scale, zero, bias):
        return F.linear(x, self.lib.dequantize(packed, scale, zero), bias)

    def inputs(self, device):
        half = {"device": device, "dtype": torch.bfloat16}
        return [randn(4, 256, **half), *self.lib.quantize(randn(192, 256, **half)), randn(192, **half)]

    def wrong(self, inputs):
        x, packed, scale, zero, bias = inputs
        return {
            "x is None": {0: None},
            "packed is None": {1: None},
            "scale is None": {2: None},
            "zero is None": {3: None},
            "x has no dimension": {0: x[0, 0]},
            r"x (is|has).*128": {0: x[:, :128]},
            "x is Half": {0: x.half()},
            r"bias (is|has).*\[3\]": {4: bias[:3]},
            "bias is Half": {4: bias.half()},
            "packed is Long": {1: packed.long()},
            r"packed (is|has) .*\[3, 4, 4, 32\]": {1: packed[..., 0]},
            "scale is Float": {2: scale.float()},
            r"scale (is|has) .*\[1, 192\]": {2: scale[:1]},
            "zero is Int": {3: zero.int()},
            r"zero (is|has) .*\[1, 192\]": {3: zero[:1]},
            "scale requires a gradient": {2: scale.clone().requires_grad_()},
        }


@pytest.mark.thorough
class TestLinearBeforeNorm(NotDifferentiable):
    function, operator = "linear_before_norm", "int4_linear.linear_before_norm"
    folder, rows, strided, error = "int4_linear", {0: 0, 5: 0}, (0, 5, 6), 0.01
    has_vmap = False

    def inputs(self, device):
        half = {"device": device, "dtype": torch.bfloat16}
        return [*TestInt4Linear.inputs(self, device), randn(4, 192, **half), randn(192, **half)]

    def wrong(self, inputs):
        x, packed, scale, _, bias, residual, norm_weight = inputs
        return {
            "x is None": {0: None},
            "residual is None": {5: None},
            "norm_weight is None": {6: None},
            r"x (is|has).*128": {0: x[:, :128]},
            "x is Half": {0: x.half()},
            "scale is Half, expected BFloat16": {0: x.half(), 2: scale.half(), 4: bias.half()},
            "packed is Long": {1: packed.long()},
            r"bias (is|has).*\[3\]": {4: bias[:3]},
            r"residual is .*\[3, 192\], expected .*\[4, 192\]": {5: residual[1:]},
            "residual is Float": {5: residual.float()},
            r"norm_weight is .*\[191\], expected .*\[192\]": {6: norm_weight[1:]},
            "norm_weight is Float": {6: norm_weight.float()},
        }


@pytest.mark.thorough
class TestLinearAfterNorm(NotDifferentiable):
    operator = "int4_linear.linear_after_norm"
    folder, rows, strided, error = "int4_linear", {0: 0, 1: 0}, (0, 1), 0.01
    has_vmap = False

    def call(self, weighted, squares, *weight):
        return self.lib.linear_after_norm(weighted, squares, 1e-5, *weight)

    def op_calls(self, inputs):
        yield self.op, (*inputs[:2], 1e-5, *inputs[2:])

    def inputs(self, device):
        x, *weight = TestInt4Linear.inputs(self, device)
        return [x, randn(4, 16, device=device).abs(), *weight]

    def wrong(self, inputs):
        weighted, squares, packed, scale, _, bias = inputs
        return {
            "weighted is None": {0: None},
            "squares is None": {1: None},
            "weighted has no dimension": {0: weighted[0, 0]},
            r"weighted (is|has).*128": {0: weighted[:, :128]},
            "scale is Half, expected BFloat16": {0: weighted.half(), 3: scale.half(), 5: bias.half()},
            r"squares is .*\[4, 15\], expected .*\[4, 16\]": {1: squares[:, 1:]},
            r"squares is .*\[3, 16\], expected .*\[4, 16\]": {1: squares[1:]},
            "squares is BFloat16": {1: squares.bfloat16()},
            "packed is Long": {2: packed.long()},
            r"bias (is|has).*\[3\]": {5: bias[:3]},
        }


@pytest.mark.thorough
class TestAttend(NotDifferentiable):
    function, operator = "attend", "decode_attention.attend"
    folder, rows, strided, error = "decode_attention", dict.fromkeys(range(4), 0), (0, 1, 2), 0.01
    has_vmap = False

    def inputs(self, device):
        half = {"device": device, "dtype": torch.float16}
        lengths = torch.tensor([40, 17], dtype=torch.int32, device=device)
        return [randn(2, 8, 64, **half), randn(2, 2, 40, 64, **half), randn(2, 2, 64, 40, **half).mT, lengths]

    def wrong(self, inputs):
        q, keys, values, lengths = inputs
        return {
            "q has 7 heads and keys 2": {0: q[:, :7]},
            "q has 0 heads and keys 2": {0: q[:, :0]},
            "q has 8 heads and keys 0": {1: keys[:, :0], 2: values[:, :0]},
            "q has 40 heads and keys 2": {0: q.repeat(1, 5, 1)},
            r"values is Half\[2, 2, 39, 64\], expected Half\[2, 2, 40, 64\]": {2: values[:, :, 1:]},
            r"lengths is Long\[2\], expected Int\[2\]": {3: lengths.long()},
            "keys is Half.*expected BFloat16": {0: q.bfloat16()},
            "Double q": {0: q.double()},
            "expected key_scale and value_scale": {1: keys.char(), 2: values.char()},
            "32 wide, expected 64 or 128": {0: q[..., :32], 1: keys[..., :32], 2: values[..., :32]},
            "expected tensors, q with 3 dimensions": {1: None},
            "lengths is None": {3: None},
        }


@pytest.mark.thorough
class TestAppend(NotDifferentiable):
    function, operator = "append", "decode_attention.append"
    folder, rows, strided, error = "decode_attention", dict.fromkeys((0, 1, 2, 5, 6, 7), 0), (0, 1, 2), 0.01
    has_vmap = False

    def inputs(self, device):
        half = {"device": device, "dtype": torch.float16}
        tables = [randn(40, 32, device=device) for _ in "cs"]
        new = [randn(2, heads, 1, 64, **half) for heads in (8, 2, 2)]
        lengths = torch.tensor([3, 39], dtype=torch.int32, device=device)
        return [*new, *tables, lengths, *(torch.zeros(2, 2, 40, 64, **half) for _ in "kv")]

    def wrong(self, inputs):
        _, k, _, cos, _, _, keys, values = inputs
        return {
            r"cos is Float\[39, 32\], expected Float\[40, 32\]": {3: cos[1:]},
            "keys shares memory with itself": {6: k.expand(keys.shape)},
            "values shares memory with keys": {7: keys},
            "keys shares memory with k": {1: keys[:, :, :1]},
            "negative view": {6: torch._neg_view(keys)},
            "dense rows that start at multiples of 16 bytes": {6: keys.new_zeros(2, 2, 40, 65)[..., 1:]},
            "has no gradient": {7: values.clone().requires_grad_()},
        }


@pytest.mark.thorough
class TestStep(NotDifferentiable):
    function, operator = "step", "decode_attention.step"
    folder, rows, strided, error = "decode_attention", dict.fromkeys((0, 1, 2, 5, 6, 7), 0), (0, 1, 2), 0.01
    has_vmap = False

    def inputs(self, device):
        q, k, v, *rest = TestAppend().inputs(device)
        return [*(x[:, :, 0] for x in (q, k, v)), *rest]

    def wrong(self, inputs):
        q, k, v, *rest = inputs
        keys = inputs[6]
        return TestAppend().wrong([*(x[:, :, None] for x in (q, k, v)), *rest]) | {
            "q has 7 heads and keys 2": {0: q[:, :7]},
            r"k is Half\[2, 1, 64\], expected Half\[2, 2, 64\]": {1: k[:, :1]},
            "keys shares memory with k": {1: keys[:, :, 0]},
        }


class TestMinimal(NotDifferentiable):
    """As page 1 says: an ordinary gradient, float32, contiguous."""

    folder, function, operator, leaves, rows = "minimal", "add", "minimal.add", (0, 1), {0: 0, 1: 0}
    refuses = "no forward derivative|setup_context"
    test_compiled = None  # minimal.py itself has compiled it
    test_freed_memory = test_vmap_refuses = None  # page 3 has that; a batch of transposed tensors is contiguous

    def inputs(self, device):
        return [randn(4, 3, device=device) for _ in "ab"]

    def wrong(self, inputs):
        a, b = inputs
        return {
            "differ in shape": {1: b[1:]},
            "expected float32": {1: b.double()},
            "and contiguous": {0: a.t(), 1: b.t()},
        }
