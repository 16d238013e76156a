"""What torch asks of every operator. A class for each operator, in test_contract.py, says what it computes and what it
refuses; the tests are Contract's."""

import io
import itertools
from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacrev, jvp, vmap

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
IS_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
SLOW = pytest.param(("hessian", "jvp"), marks=pytest.mark.thorough)
VIEWS = {  # the same numbers, elsewhere in memory
    "every other": lambda x: torch.stack((x, x), -1).flatten(-2)[..., ::2],
    "not aligned": lambda x: torch.cat((x.new_zeros(1), x.flatten()))[1:].view(x.shape),
    "long rows": lambda x: torch.nn.functional.pad(x, (3, 0))[..., 3:],
    "columns": lambda x: x.movedim(-1, 0).contiguous().movedim(0, -1),
}


def randn(*shape, device, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(device, dtype)


def loss(function):
    return lambda *leaves: sum(y.double().square().sum() for y in function(*leaves))


def autograd(function, *leaves):
    leaves = [x.detach().requires_grad_() for x in leaves]
    return torch.autograd.grad(loss(function)(*leaves), leaves)


def autograd_twice(function, *leaves):
    leaves = [x.detach().requires_grad_() for x in leaves]
    first = torch.autograd.grad(loss(function)(*leaves), leaves, create_graph=True)
    return torch.autograd.grad(sum(x.double().sin().sum() for x in first), leaves)


def every(leaves):
    return tuple(range(len(leaves)))


def by_first(function, leaves):
    return lambda x: function(x, *leaves[1:])


def several(leaves):
    return tuple(torch.stack((x, -2 * x)) for x in leaves)


TRANSFORMS = {
    "autograd": autograd,
    "jvp": lambda f, *x: jvp(f, x, x)[1],
    "grad": lambda f, *x: grad(loss(f), every(x))(*x),
    "jacrev": lambda f, *x: jacrev(loss(f), every(x))(*x),
    "vmap of grad": lambda f, *x: vmap(grad(loss(f), every(x)))(*several(x)),
    "vmap of jvp": lambda f, *x: vmap(lambda *x: jvp(f, x, x)[1])(*several(x)),
    "hessian": lambda f, *x: hessian(by_first(loss(f), x))(x[0]),
    "grad of grad": lambda f, *x: grad(lambda y: grad(by_first(loss(f), x))(y).double().sin().sum())(x[0]),
    "jvp of grad": lambda f, *x: jvp(grad(by_first(loss(f), x)), x[:1], x[:1])[1],
    "jvp of jvp": lambda f, *x: jvp(lambda y: jvp(by_first(f, x), (y,), x[:1])[1], x[:1], x[:1])[1],
    "grad of vmap of grad": lambda f, *x: grad(
        lambda y: vmap(grad(by_first(loss(f), x)))(torch.stack((y, -y))).double().sin().sum()
    )(x[0]),
}


class Contract:
    folder = module = ""
    leaves: tuple[int, ...] = ()  # the inputs that have a gradient
    rows: dict[int, int] = {}  # noqa: RUF012  (inputs whose size may change, and its dimension)
    strided: tuple[int, ...] | None = None  # the inputs that may have any strides, if not the leaves
    error = 1e-6  # of a result, by its norm
    has_vmap, has_second, is_promoting, is_refused_on_meta = True, False, False, False

    # An operator's own part: the public function, the operator, the same by torch, right inputs, wrong ones.
    def inputs(self, lib, device) -> list:
        raise NotImplementedError

    def wrong(self, inputs) -> dict:  # words of the message: what to put in place of some inputs
        raise NotImplementedError

    def op_calls(self, lib, inputs):  # the operator, and arguments, for opcheck
        yield self.op(lib), inputs

    @pytest.fixture(scope="class")
    def lib(self, lesson):
        return lesson(self.folder, self.module or self.folder)

    @pytest.fixture(params=DEVICES)
    def device(self, request):
        torch.compiler.reset()
        return request.param

    def tensors(self, call, *inputs) -> tuple:
        found = call(*inputs)
        return found if isinstance(found, tuple) else (found,)

    def assert_close(self, found, right):
        found, right = (torch.utils._pytree.tree_leaves(x) for x in (found, right))
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

    def shorten(self, inputs, n):
        return [x.narrow(self.rows[i], 0, n) if i in self.rows else x for i, x in enumerate(inputs)]

    def test_asked_by_torch(self, lib, device):
        for op, arguments in self.op_calls(lib, self.inputs(lib, device)):
            torch.library.opcheck(op, tuple(arguments))
        if self.leaves:
            op, arguments = next(self.op_calls(lib, self.with_leaves(self.inputs(lib, device))))
            torch.library.opcheck(op, tuple(arguments))

    @pytest.mark.parametrize("transform", TRANSFORMS)
    def test_derivatives(self, lib, device, transform):
        """Those of torch's own functions, of first and second order."""
        if not self.leaves:
            pytest.skip("has no derivative")
        inputs = self.inputs(lib, device)
        leaves = [inputs[i] for i in self.leaves]
        ours, theirs = (self.of_leaves(lib, function, inputs) for function in (self.call, self.by_torch))
        self.assert_close(TRANSFORMS[transform](ours, *leaves), TRANSFORMS[transform](theirs, *leaves))

    @pytest.mark.parametrize("names", [("grad", "jacrev", "vmap of grad", "jvp"), SLOW], ids=" ".join)
    def test_compiled_derivatives(self, lib, device, names):
        """Several transforms in one graph, which takes one compilation."""
        if not self.leaves:
            pytest.skip("has no derivative")
        if IS_OLD:  # jvp() after grad() ends in an error there: add2/ops.py says why
            names = [name for name in names if name != "jvp"] if "grad" in names else names
        inputs = self.inputs(lib, device)
        leaves = [inputs[i] for i in self.leaves]
        ours, theirs = (self.of_leaves(lib, function, inputs) for function in (self.call, self.by_torch))
        compiled = torch.compile(lambda f, x: [TRANSFORMS[name](f, *x) for name in names], backend="aot_eager")
        self.assert_close(compiled(ours, leaves), [TRANSFORMS[name](theirs, *leaves) for name in names])

    def test_second_derivative(self, lib, device):
        if not self.leaves:
            pytest.skip("has no derivative")
        inputs = self.inputs(lib, device)
        leaves = [inputs[i] for i in self.leaves]
        ours, theirs = (self.of_leaves(lib, function, inputs) for function in (self.call, self.by_torch))
        if self.has_second:
            self.assert_close(autograd_twice(ours, *leaves), autograd_twice(theirs, *leaves))
        else:
            with pytest.raises(RuntimeError, match="no second derivative"):
                autograd_twice(ours, *leaves)

    def test_no_derivative(self, lib, device):
        """An operator without any refuses all, compiled or not."""
        if self.leaves:
            pytest.skip("has derivatives")
        inputs = self.inputs(lib, device)
        first, i = next((x, i) for i, x in enumerate(inputs) if x.is_floating_point())

        def call(x):
            return self.call(lib, *inputs[:i], x, *inputs[i + 1 :]).float().sum()

        for each in (call, torch.compile(call, backend="aot_eager")):
            for transform in (grad(each), lambda x, f=each: jvp(f, (x,), (x,))):
                with pytest.raises(Exception, match=r"gradient|derivative|requires grad"):
                    transform(first)
            with pytest.raises(Exception, match=r"gradient|derivative|requires grad"):
                each(first.clone().requires_grad_())

    def test_vmap(self, lib, device):
        """Along each dimension of each input; or refused."""
        inputs = self.inputs(lib, device)
        call = partial(self.call, lib)
        for some in (*((i,) for i in self.leaves), self.leaves or (0,)):
            for dim in (0, -1):
                many = [torch.stack([x * n for n in (1, -1, 2)], dim) if i in some else x for i, x in enumerate(inputs)]
                dims = tuple(dim if i in some else None for i in range(len(inputs)))
                if not self.has_vmap:
                    with pytest.raises((RuntimeError, NotImplementedError), match=r"vmap|Batching rule"):
                        vmap(call, dims)(*many)
                    continue
                found = self.tensors(vmap(call, dims), *many)
                for n in range(3):
                    one = [x.select(dim, n) if i in some else x for i, x in enumerate(many)]
                    self.assert_close([y[n] for y in found], self.tensors(call, *one))

    def test_autocast(self, lib, device):
        """Dtypes, values and gradients are those of torch's own functions."""
        if not self.is_promoting:
            pytest.skip("has a rule of its own, or none")
        for dtypes in itertools.product(FLOATS, repeat=len(self.leaves)):
            inputs = self.inputs(lib, device)
            leaves = [inputs[i].to(dtype).requires_grad_() for i, dtype in zip(self.leaves, dtypes, strict=True)]
            found = []
            for function in (self.call, self.by_torch):
                with torch.autocast(device, torch.bfloat16):
                    ys = self.of_leaves(lib, function, inputs)(*leaves)
                gradients = torch.autograd.grad(sum(y.double().square().sum() for y in ys), leaves)
                found.append([*ys, *gradients])
            for x, y in zip(*found, strict=True):
                assert x.dtype == y.dtype
                assert (x.double() - y.double()).norm() <= 0.02 * y.double().norm()

    def test_strides(self, lib, device):
        inputs = self.inputs(lib, device)
        right = self.tensors(self.call, lib, *inputs)
        for i in self.leaves if self.strided is None else self.strided:
            for view in VIEWS.values():
                same = [view(x) if j == i else x for j, x in enumerate(self.inputs(lib, device))]
                self.assert_close(self.tensors(self.call, lib, *same), right)

    @pytest.mark.inductor
    def test_compiled(self, lib, device):
        """By the default backend, once; with a gradient where there is one."""
        inputs = self.with_leaves(self.inputs(lib, device))
        leaves = [inputs[i] for i in self.leaves]
        compiled = torch.compile(lambda *inputs: self.tensors(self.call, lib, *inputs), fullgraph=True)
        found, right = compiled(*inputs), self.tensors(self.call, lib, *inputs)
        self.assert_close(found, right)
        if leaves:
            self.assert_close(*(torch.autograd.grad([y.sum() for y in ys], leaves) for ys in (found, right)))

    def test_compiled_sizes(self, lib, device):
        """One graph for all sizes, with gradients; and sizes that depend on data."""
        inputs = self.inputs(lib, device)
        full = inputs[next(iter(self.rows))].shape[next(iter(self.rows.values()))]
        counter, counts = CompileCounterWithBackend("aot_eager"), set()
        compiled = torch.compile(partial(self.call, lib), fullgraph=True, dynamic=True, backend=counter)
        with torch.fx.experimental._config.patch(use_duck_shape=False):  # sizes that are equal now may differ later
            for n in range(2, full + 1):
                some = self.with_leaves(self.shorten(inputs, n))
                found, right = self.tensors(compiled, *some), self.tensors(self.call, lib, *some)
                self.assert_close(found, right)
                leaves = [some[i] for i in self.leaves]
                if leaves:
                    self.assert_close(*(torch.autograd.grad([y.sum() for y in ys], leaves) for ys in (found, right)))
                counts.add(counter.frame_count)
        assert len(counts) == 1

        def cut(k, *inputs):  # clones: torch cannot write into views of such sizes
            return self.tensors(self.call, lib, *(x.clone() for x in self.shorten(inputs, k.item())))

        def select(mask, *inputs):  # by the mask or its inverse: two sizes that have to be equal
            masks = [mask, ~mask] * len(inputs)
            dims = [self.rows.get(i) for i in range(len(inputs))]
            some = [
                x if d is None else x.movedim(d, 0)[masks[i]] for i, (x, d) in enumerate(zip(inputs, dims, strict=True))
            ]
            return self.tensors(
                self.call, lib, *(x if not d else x.movedim(0, d) for x, d in zip(some, dims, strict=True))
            )

        mask = torch.arange(full, device=device) % 2 == 0
        with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
            for function, x in ((cut, torch.tensor(2)), (select, mask)):
                compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
                self.assert_close(compiled(x, *inputs), function(x, *inputs))

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
        """Saved, loaded, and called with other sizes; the graph holds the operator."""
        inputs, module = self.inputs(lib, device), torch.nn.Module()
        module.forward = lambda *inputs: self.call(lib, *inputs)
        dim = torch.export.Dim("rows", min=2)
        shapes = tuple({self.rows[i]: dim} if i in self.rows else None for i in range(len(inputs)))
        torch.export.save(torch.export.export(module, tuple(inputs), dynamic_shapes=(shapes,)), file := io.BytesIO())
        file.seek(0)
        program = torch.export.load(file)
        assert str(self.op(lib)) in program.graph_module.code
        some = self.with_leaves(self.shorten(inputs, 2))
        found, right = self.tensors(program.module(), *some), self.tensors(self.call, lib, *some)
        self.assert_close(found, right)
        leaves = [some[i] for i in self.leaves]
        if leaves:
            self.assert_close(*(torch.autograd.grad([y.sum() for y in ys], leaves) for ys in (found, right)))

    def test_refused(self, lib, device):
        """In the same words with a derivative and under inference mode; and nothing is written."""
        places = [self.inputs(lib, device)]
        places += [[x.to("meta") for x in places[0]]] * self.is_refused_on_meta
        for right, (words, changes) in [(x, each) for x in places for each in self.wrong(x).items()]:
            inputs = [changes.get(i, x) for i, x in enumerate(right)]
            calls = [partial(self.call, lib, *inputs)]
            if "gradient" not in words:  # none is recorded under inference mode
                calls.append(torch.inference_mode()(calls[0]))
            leaves = tuple(inputs[i] for i in self.leaves)
            if leaves and all(isinstance(x, torch.Tensor) and x.is_floating_point() for x in leaves):
                of_leaves = self.of_leaves(lib, self.call, inputs)
                calls += [partial(jvp, of_leaves, leaves, leaves), partial(grad(loss(of_leaves)), *leaves)]
            before = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
            for call in calls:
                with pytest.raises(RuntimeError, match=words):
                    call()
            if right is places[0]:
                assert all(x is y or torch.equal(x, y) for x, y in zip(inputs, before, strict=True))

    def test_on_meta(self, lib, device):
        """A fake result is like the real one; a call with one tensor elsewhere is refused."""
        inputs = self.inputs(lib, device)
        right = self.tensors(self.call, lib, *inputs)
        tensors = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        moved = [x.to("meta") if i in tensors else x for i, x in enumerate(inputs)]
        for x, y in zip(self.tensors(self.call, lib, *moved), right, strict=True):
            assert (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())
        for i, other in itertools.product(tensors, ["meta"] + ["cpu"] * (device == "cuda")):
            with pytest.raises(RuntimeError, match=r"device|is on|on meta"):
                self.call(lib, *inputs[:i], inputs[i].to(other), *inputs[i + 1 :])

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    def test_graph_and_stream(self, lib):
        """Captured, with its gradient, and replayed with new values; on a stream that writes the inputs late."""
        inputs = self.with_leaves(self.inputs(lib, "cuda"))
        leaves = [inputs[i] for i in self.leaves]

        def step(inputs):
            ys = self.tensors(self.call, lib, *inputs)
            return *ys, *(torch.autograd.grad([y.sum() for y in ys], leaves) if leaves else ())

        right, graph, values = step(inputs), torch.cuda.CUDAGraph(), [x.detach().clone() for x in leaves]
        with torch.cuda.graph(graph):
            found = step(inputs)
        for factor in (0, 1):
            with torch.no_grad():
                for x, value in zip(leaves, values, strict=True):
                    x.copy_(factor * value)
            graph.replay()
        self.assert_close(found, right)
        ready = self.inputs(lib, "cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(20_000_000)
            late = [x + 0 if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in ready]
            found = self.tensors(self.call, lib, *late)
        torch.cuda.synchronize()
        self.assert_close(found, right[: len(found)])
