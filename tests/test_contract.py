"""What torch asks of every operator, asked of all of them: a class for each operator says what it computes and what it
refuses; the tests are Contract's. A lesson's own tests have what is its own."""

import importlib
import os
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.utils import cpp_extension

from lab import toolchain

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()


def randn(*shape, device, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(device, dtype)


class Contract:
    folder = module = ""
    leaves: tuple[int, ...] = ()  # the inputs that have a gradient
    error = 1e-6  # of a result, by its norm

    # An operator's own part: the public function, the operator, the same by torch, right inputs, wrong ones.
    def inputs(self, lib, device) -> list:
        raise NotImplementedError

    def wrong(self, inputs) -> dict:  # words of the message: what to put in place of some inputs
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def lib(cls):
        os.environ["PATH"] = toolchain.tool_path()  # ninja
        sys.path.insert(0, str(EXAMPLES / cls.folder))
        cpp_extension.CUDA_HOME = torch.version.cuda and toolchain.environment().get("CUDA_HOME")
        module = importlib.import_module(cls.module or cls.folder)
        if hasattr(module, "build"):
            module.build()
        return module

    @pytest.fixture(params=DEVICES)
    def device(self, request):
        torch.compiler.reset()
        return request.param

    def tensors(self, call, *inputs) -> tuple:
        found = call(*inputs)
        return found if isinstance(found, tuple) else (found,)

    def assert_close(self, found, right):
        assert len(found) == len(right)
        for x, y in zip(found, right, strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            assert (x.double() - y.double()).norm() <= self.error * y.double().norm()

    def with_leaves(self, inputs):
        return [x.detach().clone().requires_grad_() if i in self.leaves else x for i, x in enumerate(inputs)]

    def of_leaves(self, lib, function, inputs):
        """The function's outputs, of the leaves only."""

        def call(*leaves):
            all_inputs = list(inputs)
            for i, x in zip(self.leaves, leaves, strict=True):
                all_inputs[i] = x
            return self.tensors(function, lib, *all_inputs)

        return call

    def test_asked_by_torch(self, lib, device):
        inputs = self.inputs(lib, device)
        torch.library.opcheck(self.op(lib), tuple(inputs))
        if self.leaves:
            torch.library.opcheck(self.op(lib), tuple(self.with_leaves(inputs)))

    def test_derivatives(self, lib, device):
        """First ones of each kind are those of torch's own functions; an operator without any refuses all."""
        inputs = self.inputs(lib, device)
        leaves = [inputs[i] for i in self.leaves]
        if not leaves:
            first = inputs[0].float() if inputs[0].dtype == torch.int8 else inputs[0]
            for transform in (torch.func.grad, lambda f: lambda x: torch.func.jvp(f, (x,), (x,))):
                with pytest.raises(RuntimeError, match=r"gradient|derivative"):
                    transform(lambda x: self.call(lib, x, *inputs[1:]).float().sum())(first)
            with pytest.raises(RuntimeError, match=r"gradient|derivative"):
                self.call(lib, first.requires_grad_(), *inputs[1:])
            return
        ours, theirs = (self.of_leaves(lib, function, inputs) for function in (self.call, self.by_torch))
        every = tuple(range(len(leaves)))

        def loss(function):
            return lambda *leaves: sum(y.float().square().sum() for y in function(*leaves))

        transforms = {
            "autograd": lambda f: torch.autograd.grad(loss(f)(*(x.requires_grad_() for x in leaves)), leaves),
            "jvp": lambda f: torch.func.jvp(f, tuple(leaves), tuple(leaves))[1],
            "grad": lambda f: torch.func.grad(loss(f), every)(*leaves),
            "vmap of grad": lambda f: torch.vmap(torch.func.grad(loss(f), every), (0, *[None] * (len(leaves) - 1)))(
                torch.stack((leaves[0], -leaves[0])), *leaves[1:]
            ),
        }
        for transform in transforms.values():
            self.assert_close(transform(ours), transform(theirs))
            leaves = [x.detach() for x in leaves]

    def test_compiled(self, lib, device):
        """By the default backend, once; with a gradient where there is one."""
        inputs = self.with_leaves(self.inputs(lib, device))
        leaves = [inputs[i] for i in self.leaves]
        compiled = torch.compile(lambda *inputs: self.tensors(self.call, lib, *inputs), fullgraph=True)
        found, right = compiled(*inputs), self.tensors(self.call, lib, *inputs)
        self.assert_close(found, right)
        if leaves:
            self.assert_close(*(torch.autograd.grad([y.sum() for y in ys], leaves) for ys in (found, right)))

    def test_compiled_make_dual(self, lib, device):
        if not self.leaves:
            pytest.skip("has no derivative")
        inputs = self.inputs(lib, device)
        call = self.of_leaves(lib, self.call, inputs)

        def tangents(*leaves):
            with forward_ad.dual_level():
                return [forward_ad.unpack_dual(y).tangent for y in call(*(forward_ad.make_dual(x, x) for x in leaves))]

        leaves = [inputs[i] for i in self.leaves]
        self.assert_close(torch.compile(tangents, backend="aot_eager", fullgraph=True)(*leaves), tangents(*leaves))

    def test_exported(self, lib, device):
        inputs, module = self.inputs(lib, device), torch.nn.Module()
        module.forward = lambda *inputs: self.call(lib, *inputs)
        with torch.no_grad():
            program = torch.export.export(module, tuple(inputs))
            again = self.inputs(lib, device)
            self.assert_close(self.tensors(program.module(), *again), self.tensors(self.call, lib, *inputs))

    def test_refused(self, lib, device):
        """In the same words with a derivative, and under inference mode."""
        right = self.inputs(lib, device)
        for words, changes in self.wrong(right).items():
            inputs = [changes.get(i, x) for i, x in enumerate(right)]
            calls = [partial(self.call, lib, *inputs)]
            if "gradient" not in words:  # none is recorded under inference mode
                calls.append(torch.inference_mode()(calls[0]))
            leaves = [inputs[i] for i in self.leaves]
            if leaves and all(isinstance(x, torch.Tensor) and x.is_floating_point() for x in leaves):
                of_leaves = self.of_leaves(lib, self.call, inputs)
                calls.append(lambda f=of_leaves, x=tuple(leaves): torch.func.jvp(f, x, x))
            for call in calls:
                with pytest.raises(RuntimeError, match=words):
                    call()

    def test_on_meta(self, lib, device):
        """A fake result is like the real one; a call with one tensor on meta is refused."""
        inputs = self.inputs(lib, device)
        right = self.tensors(self.call, lib, *inputs)
        tensors = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        moved = [x.to("meta") if i in tensors else x for i, x in enumerate(inputs)]
        for x, y in zip(self.tensors(self.call, lib, *moved), right, strict=True):
            assert (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())
        for i in tensors:
            with pytest.raises(RuntimeError, match=r"device|on meta"):
                self.call(lib, *inputs[:i], inputs[i].to("meta"), *inputs[i + 1 :])

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    def test_graph_and_stream(self, lib):
        inputs = self.inputs(lib, "cuda")
        right = self.tensors(self.call, lib, *inputs)
        graph, again = torch.cuda.CUDAGraph(), self.inputs(lib, "cuda")
        with torch.cuda.graph(graph):
            found = self.tensors(self.call, lib, *again)
        graph.replay()
        self.assert_close(found, right)
        with torch.cuda.stream(torch.cuda.Stream()):
            self.assert_close(self.tensors(self.call, lib, *self.inputs(lib, "cuda")), right)


class TestRope(Contract):
    folder, leaves = "rope", (0,)

    def call(self, lib, x, cos, sin):
        return lib.rotate(x, cos, sin)

    def op(self, lib):
        return lib.op

    def by_torch(self, lib, x, cos, sin):
        return lib.by_torch(x, cos, sin)

    def inputs(self, lib, device):
        return [randn(2, 4, 7, 16, device=device), *(randn(7, 8, device=device) for _ in "cs")]

    def wrong(self, inputs):
        x, cos, _ = inputs
        return {
            r"x is Double": {0: x.double()},
            r"x has shape \[4, 7, 16\]": {0: x[0]},
            r"cos is Float\[6, 8\], expected Float\[7, 8\]": {1: cos[1:]},
            r"sin is Float\[7, 7\]": {2: cos[:, 1:]},
            "cos is None": {1: None},
        }


class TestGatedLinear(Contract):
    folder, module, leaves, error = "matmul", "gated_linear", (0, 1), 0.01

    def call(self, lib, x, w):
        return lib.gated_linear(x, w)

    def op(self, lib):
        return torch.ops.gated_linear.gated_linear.default

    def by_torch(self, lib, x, w):
        return lib.reference(x, w)

    def inputs(self, lib, device):
        return [randn(5, 24, device=device, dtype=torch.bfloat16), randn(32, 24, device=device, dtype=torch.bfloat16)]

    def wrong(self, inputs):
        x, w = inputs
        message = "gated_linear: x is .*expected"
        some = ({0: x[:, 1:]}, {1: w[:8]}, {1: w.float()}, {0: x.int(), 1: w.int()}, {0: x[0, 0]}, {1: w[0]})
        return {f"{message}(){{{i}}}": change for i, change in enumerate(some)}


class TestAddRmsNorm(Contract):
    folder, leaves, error = "add_rms_norm", (0, 1, 2), 1e-5

    def call(self, lib, a, b, weight):
        return lib.add_rms_norm(a, b, weight)

    def op(self, lib):
        return torch.ops.add_rms_norm.add_rms_norm.default

    def by_torch(self, lib, a, b, weight):
        return lib.reference(a, b, weight)

    def inputs(self, lib, device):
        return [randn(3, 4, 16, device=device), randn(4, 3, 16, device=device).view(3, 4, 16), randn(16, device=device)]

    def test_asked_by_torch(self, lib, device):
        a, b, weight = self.inputs(lib, device)
        torch.library.opcheck(self.op(lib), (*self.with_leaves([a, b, weight]), 1e-6))
        torch.library.opcheck(self.op(lib), (a.transpose(0, 1), b.view(4, 3, 16), weight, 1e-6))
        _, s, rstd = self.op(lib)(a, b, weight, 1e-6)
        for ds in (b, None):
            backward = torch.ops.add_rms_norm.add_rms_norm_backward.default
            torch.library.opcheck(backward, (a, ds, s, weight, rstd))

    def wrong(self, inputs):
        a, b, weight = inputs
        return {
            r"b is Float\[3, 4, 15\], expected Float\[3, 4, 16\]": {1: b[..., 1:]},
            r"weight is Float\[15\], expected Float\[16\]": {2: weight[1:]},
            r"weight is Float\[1, 16\]": {2: weight[None]},
            "no last dimension": {0: a[0, 0, 0], 1: b[0, 0, 0]},
            "b is Double": {1: b.double()},
            "weight is Half": {2: weight.half()},
            "expected float32, float64, float16 or bfloat16": {0: a.int(), 1: b.int(), 2: weight.int()},
            "weight is None": {2: None},
            "b is None": {1: None},
        }


class TestInt4Linear(Contract):
    folder, leaves, error = "int4_linear", (0, 4), 0.01

    def call(self, lib, *inputs):
        return lib.int4_linear(*inputs)

    def op(self, lib):
        return torch.ops.int4_linear.int4_linear.default

    def by_torch(self, lib, x, packed, scale, zero, bias):
        return F.linear(x, lib.dequantize(packed, scale, zero), bias)

    def inputs(self, lib, device):
        half = {"device": device, "dtype": torch.bfloat16}
        return [randn(3, 256, **half), *lib.quantize(randn(192, 256, **half)), randn(192, **half)]

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


class TestAttend(Contract):
    folder, error = "decode_attention", 0.01

    def call(self, lib, q, keys, values, lengths, scale=None):
        return lib.attend(q, keys, values, lengths, scale)

    def op(self, lib):
        return torch.ops.decode_attention.attend.default

    def inputs(self, lib, device):
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


class TestAppend(Contract):
    folder, error = "decode_attention", 0.01

    def call(self, lib, *inputs):
        return lib.append(*inputs)

    def op(self, lib):
        return torch.ops.decode_attention.append.default

    def inputs(self, lib, device):
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
