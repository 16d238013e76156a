"""What torch asks of every operator, and the referee does not (test_referee_ours.py has what it asks): the operators
below the public function, one graph for all sizes, freed memory, all words of a refusal. A class for each operator, in
test_contract.py, says what it computes and what it refuses; the tests are Contract's."""

import io
import itertools
from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import grad, hessian, jacrev, jvp, vmap
from torch.utils._pytree import tree_leaves, tree_map

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
IS_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
VIEWS = {  # the same numbers, elsewhere in memory
    "every other": lambda x: torch.stack((x, x), -1).flatten(-2)[..., ::2],
    "not aligned": lambda x: torch.cat((x.new_zeros(1), x.flatten()))[1:].view(x.shape),
    "long rows": lambda x: torch.nn.functional.pad(x, (3, 0))[..., 3:],
    "columns": lambda x: x.movedim(-1, 0).contiguous().movedim(0, -1),
}


def randn(*shape, device, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(device, dtype)


def leaf(x):
    return x.detach().requires_grad_()


def loss(function):
    return lambda *leaves: sum(y.double().square().sum() for y in function(*leaves))


def every(leaves):
    return tuple(range(len(leaves)))


def by_first(function, leaves):
    return lambda x: function(x, *leaves[1:])


def several(leaves):
    return tuple(torch.stack((x, -2 * x)) for x in leaves)


TRANSFORMS = {
    "jvp": lambda f, *x: jvp(f, x, x)[1],
    "grad": lambda f, *x: grad(loss(f), every(x))(*x),
    "jacrev": lambda f, *x: jacrev(loss(f), every(x))(*x),
    "vmap of grad": lambda f, *x: vmap(grad(loss(f), every(x)))(*several(x)),
    "hessian": lambda f, *x: hessian(by_first(loss(f), x))(x[0]),
}


class Contract:
    """Of an operator without derivatives. Names: of its lesson's folder and module, of the public function, of the
    operator in torch.ops, and of the same by torch's own functions."""

    folder = module = function = operator = reference = ""
    leaves: tuple[int, ...] = ()  # the inputs that have a gradient
    rows: dict[int, int] = {}  # noqa: RUF012  (inputs whose size may change, and its dimension)
    strided: tuple[int, ...] = ()  # the inputs that may have any strides
    error = 1e-6  # of a result, by its norm
    has_vmap, is_refused_on_meta = True, False

    def inputs(self, device) -> list:
        raise NotImplementedError

    def wrong(self, inputs) -> dict:  # words of the message: what to put in place of some inputs
        raise NotImplementedError

    def op_calls(self, inputs):  # operators, and their arguments, for opcheck
        yield self.op, inputs

    @property
    def op(self):
        namespace, name = self.operator.split(".")
        return getattr(getattr(torch.ops, namespace), name).default

    def call(self, *inputs):
        return getattr(self.lib, self.function)(*inputs)

    def by_torch(self, *inputs):
        return getattr(self.lib, self.reference)(*inputs)

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def loaded(cls, lesson):
        cls.lib = lesson(cls.folder, cls.module or cls.folder)

    @pytest.fixture(autouse=True)
    def compiles_anew(self):
        torch.compiler.reset()

    def tensors(self, call, *inputs) -> tuple:
        found = call(*inputs)
        return found if isinstance(found, tuple) else (found,)

    def assert_close(self, found, right, errors=1):
        found, right = (tree_leaves(x) for x in (found, right))
        for x, y in zip(found, right, strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            assert (x.double() - y.double()).norm() <= errors * self.error * y.double().norm()

    def assert_same(self, call, other, inputs):
        """The outputs of both, and their gradients where there are any."""
        inputs = [x.detach().clone().requires_grad_() if i in self.leaves else x for i, x in enumerate(inputs)]
        found, right = self.tensors(call, *inputs), self.tensors(other, *inputs)
        self.assert_close(found, right)
        if leaves := [inputs[i] for i in self.leaves]:
            self.assert_close(*(torch.autograd.grad([y.sum() for y in ys], leaves) for ys in (found, right)))

    def shorten(self, inputs, n):
        return [x.narrow(self.rows[i], 0, n) if i in self.rows else x for i, x in enumerate(inputs)]

    def test_asked_by_torch(self, device):
        """The first call with gradients, too."""
        inputs = self.inputs(device)
        calls = [*self.op_calls(inputs)]
        if leaves := [inputs[i] for i in self.leaves]:
            op, arguments = calls[0]
            calls.append((op, tree_map(lambda x: leaf(x) if any(x is y for y in leaves) else x, list(arguments))))
        for op, arguments in calls:
            torch.library.opcheck(op, tuple(arguments))

    def test_vmap_refuses(self, device):
        """What the plain call refuses, whichever of the leaves has a batch."""
        if not self.has_vmap:
            pytest.skip("has no vmap")
        right, name = self.inputs(device), self.operator.split(".")[1]
        for words, changes in self.wrong(right).items():
            inputs = [changes.get(i, x) for i, x in enumerate(right)]
            batched = [i for i in self.leaves if isinstance(inputs[i], torch.Tensor)]
            for some in {*((i,) for i in batched), tuple(batched)} - {()}:
                many = [torch.stack((x, x, x)) if i in some else x for i, x in enumerate(inputs)]
                dims = tuple(0 if i in some else None for i in range(len(inputs)))
                with pytest.raises((RuntimeError, TypeError), match=f"{name}|{words}"):
                    vmap(self.call, dims)(*many)

    @pytest.mark.inductor
    def test_compiled(self, device):
        """By the default backend, once."""
        self.assert_same(torch.compile(self.call, fullgraph=True), self.call, self.inputs(device))

    def test_compiled_sizes(self, device):
        """One graph for all sizes; and sizes that depend on data."""
        inputs = self.inputs(device)
        first, dim = next(iter(self.rows.items()))
        counter, counts = CompileCounterWithBackend("aot_eager"), set()
        compiled = torch.compile(self.call, fullgraph=True, dynamic=True, backend=counter)
        with torch.fx.experimental._config.patch(use_duck_shape=False):  # sizes that are equal now may differ later
            for n in range(2, inputs[first].shape[dim] + 1):
                self.assert_same(compiled, self.call, self.shorten(inputs, n))
                counts.add(counter.frame_count)
        assert len(counts) == 1

        def cut(k, *inputs):  # clones: torch cannot write into views of such sizes
            return self.tensors(self.call, *(x.clone() for x in self.shorten(inputs, k.item())))

        def select(mask, *inputs):  # by the mask or its inverse: two sizes that have to be equal
            some = list(inputs)
            for i, dim in self.rows.items():
                some[i] = some[i].movedim(dim, 0)[mask if i % 2 else ~mask].movedim(0, dim)
            return self.tensors(self.call, *some)

        mask = torch.arange(inputs[first].shape[dim], device=device) % 2 == 0
        with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
            for function, x in ((cut, torch.tensor(2)), (select, mask)):
                compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
                self.assert_close(compiled(x, *inputs), function(x, *inputs))

    def test_exported(self, device):
        """Saved, loaded, and called with other sizes; the graph holds the operator."""
        inputs, module = self.inputs(device), torch.nn.Module()
        module.forward = lambda *inputs: self.call(*inputs)
        dim = torch.export.Dim("rows", min=2)
        shapes = tuple({self.rows[i]: dim} if i in self.rows else None for i in range(len(inputs)))
        torch.export.save(torch.export.export(module, tuple(inputs), dynamic_shapes=(shapes,)), file := io.BytesIO())
        file.seek(0)
        program = torch.export.load(file)
        assert str(self.op) in program.graph_module.code
        self.assert_same(program.module(), self.call, self.shorten(inputs, 2))

    def refusals(self, inputs, words):
        """The same call in several ways, which all have to refuse it."""
        yield partial(self.call, *inputs)
        if "gradient" not in words:  # none is recorded under inference mode
            yield torch.inference_mode()(partial(self.call, *inputs))

    def test_refused(self, device):
        """In the same words in every way; and nothing is written."""
        places = [self.inputs(device)]
        places += [[x.to("meta") for x in places[0]]] * self.is_refused_on_meta
        for right, (words, changes) in [(x, each) for x in places for each in self.wrong(x).items()]:
            inputs = [changes.get(i, x) for i, x in enumerate(right)]
            before = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
            for call in self.refusals(inputs, words):
                with pytest.raises((RuntimeError, TypeError), match=words):
                    call()
            if right is places[0]:
                assert all(x is y or torch.equal(x, y) for x, y in zip(inputs, before, strict=True))

    def test_freed_memory(self, device):
        """Refused: a tensor whose storage was freed still has its shape, and no memory to read."""
        for i in range(len(self.inputs(device))):
            for view in (torch.Tensor.clone, VIEWS["not aligned"]):  # an address that is null, and one that is not
                inputs = [x.clone() for x in self.inputs(device)]
                inputs[i] = view(inputs[i])
                inputs[i].untyped_storage().resize_(0)
                with pytest.raises(RuntimeError, match="no memory"):
                    self.call(*inputs)


class NotDifferentiable(Contract):
    refuses = "gradient|derivative|requires grad"

    def test_no_derivative(self, device):
        """All are refused, compiled or not; except an ordinary gradient of the leaves."""
        inputs = self.inputs(device)
        i = (self.strided or self.leaves)[0]

        def call(x):
            return self.call(*inputs[:i], x, *inputs[i + 1 :]).float().sum()

        compiles = partial(torch.compile, backend="aot_eager")
        for transform in (grad, lambda f: lambda x: jvp(f, (x,), (x,))):
            for way in (transform(call), transform(compiles(call)), compiles(transform(call))):
                with pytest.raises(Exception, match=self.refuses):
                    way(inputs[i])
        for each in (call, compiles(call)) if not self.leaves else ():
            with pytest.raises(Exception, match=self.refuses):
                each(inputs[i].clone().requires_grad_())


class Differentiable(Contract):
    is_promoting = False
    uncompiled = ()  # transforms and devices: before torch 2.13 torch.compile fails on torch's own functions, too

    def functions(self, inputs):
        """Ours and torch's own, as functions of the leaves only; and these."""

        def of_leaves(function, *leaves):
            all_inputs = list(inputs)
            for i, x in zip(self.leaves, leaves, strict=True):
                all_inputs[i] = x
            return self.tensors(function, *all_inputs)

        return partial(of_leaves, self.call), partial(of_leaves, self.by_torch), [inputs[i] for i in self.leaves]

    def refusals(self, inputs, words):
        yield from super().refusals(inputs, words)
        ours, _, leaves = self.functions(inputs)
        if all(isinstance(x, torch.Tensor) and x.is_floating_point() for x in leaves):
            yield partial(jvp, ours, tuple(leaves), tuple(leaves))
            yield partial(grad(loss(ours)), *leaves)

    @pytest.mark.thorough
    @pytest.mark.parametrize("names", [("grad", "jacrev", "vmap of grad", "jvp"), ("hessian", "jvp")], ids=" ".join)
    def test_compiled_derivatives(self, device, names):
        """Several transforms in one graph, which takes one compilation."""
        if IS_OLD:  # jvp() after grad() in one compiled function ends in an error there
            names = [name for name in names if name != "jvp"] if "grad" in names else names
            names = [name for name in names if (name, device) not in self.uncompiled]
        ours, theirs, leaves = self.functions(self.inputs(device))
        compiled = torch.compile(lambda f, x: [TRANSFORMS[name](f, *x) for name in names], backend="aot_eager")
        self.assert_close(compiled(ours, leaves), [TRANSFORMS[name](theirs, *leaves) for name in names])

    def test_autocast(self, device):
        """Dtypes, values and gradients are those of torch's own functions; compiled, too."""
        if not self.is_promoting:
            pytest.skip("has a rule of its own, or none")
        *functions, leaves = self.functions(self.inputs(device))
        for dtypes in itertools.product(FLOATS, repeat=len(leaves)):
            some = [x.to(dtype).requires_grad_() for x, dtype in zip(leaves, dtypes, strict=True)]
            found, is_mixed = [], dtypes == (torch.float32, *[torch.bfloat16] * (len(leaves) - 1))
            compiled = [torch.compile(functions[0], backend="aot_eager")] * (is_mixed and not IS_OLD)
            for function in [functions[1], functions[0], *compiled]:
                with torch.autocast(device, torch.bfloat16):
                    ys = function(*some)
                found.append([*ys, *torch.autograd.grad(sum(y.double().square().sum() for y in ys), some)])
            for right, x in [(right, x) for ours in found[1:] for right, x in zip(found[0], ours, strict=True)]:
                assert x.dtype == right.dtype
                assert (x.double() - right.double()).norm() <= 0.02 * right.double().norm()

    def test_autocast_refuses(self, device):
        """It casts floating-point numbers; integers and complex numbers are refused, as without it."""
        for i, dtype in itertools.product(self.leaves, (torch.int32, torch.complex64)):
            inputs = [x.to(dtype) if j == i else x for j, x in enumerate(self.inputs(device))]
            with torch.autocast(device, torch.bfloat16), pytest.raises((RuntimeError, TypeError)):
                self.call(*inputs)
