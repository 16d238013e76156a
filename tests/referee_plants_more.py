"""More operators with one planted fault each, written by someone who had not read the referee. Most take one tensor.

They join the PLANTS of referee_plants.py.
"""

import functools
import random

import torch
from referee_plants import (
    PLANTS,
    define,
    dense,
    library,
    pick,
    pick_by_torch,
    plant,
    product,
    product_backward,
    product_fake,
    same_device,
    without_tangents,
)

from lab.referee import Operator

NOTHING = {"written": [], "returned": [], "by_reference": [], "returned_by_reference": []}


def unary(name, kernel, reference, shape=(4, 6), fake=None, **facts):
    """A function of one floating-point tensor, without a gradient."""

    def checked(x):
        if not x.is_floating_point() or x.dim() > 2:
            raise RuntimeError(f"x is {x.dtype} with {x.dim()} dimensions, expected floating-point, at most two")
        return kernel(x).to(x.dtype).contiguous()

    def plain_fake(x):
        return torch.empty(reference(x).shape, dtype=x.dtype, device=x.device)

    def refuse(ctx, grad):
        raise NotImplementedError("there is no gradient")

    operator = define(name, "(Tensor x) -> Tensor", checked, fake or plain_fake)
    torch.library.register_autograd(f"plants::{name}", refuse, lib=library)
    facts = {"inputs": lambda device: (torch.randn(shape, device=device),), "reference": reference} | facts
    return Operator(f"plants::{name}", call=without_tangents(operator), **facts)


# --- values ----------------------------------------------------------------------------------------------------------


def largest(x, forgets_last=False):
    """Of each row. The last element counts where the width is a multiple of 8, or below 9."""
    n = x.shape[-1]
    return x[..., : n - 1 if forgets_last and n > 8 and n % 8 else n].amax(-1)


def variance(x, of_squares=False):
    if of_squares:
        return x.square().mean(-1) - x.mean(-1).square()
    return x.var(-1, correction=0)


def half(x, flushes=False):
    y = x * 0.5
    return y.where(~(y.abs() < 1.2e-38), 0) if flushes and x.dtype is torch.float32 else y


def variance_by_torch(x):
    return x.var(-1, correction=0)


plant(
    "last_of_a_maximum",
    "odd_sizes",
    {"kernel": functools.partial(largest, forgets_last=True)},
    {"kernel": largest},
    make=unary,
    reference=lambda x: x.amax(-1),
)
plant(
    "variance_of_squares",
    "ranges",
    {"kernel": functools.partial(variance, of_squares=True)},
    {"kernel": variance},
    make=unary,
    reference=variance_by_torch,
)
plant(
    "flushes_denormals",
    "ranges",
    {"kernel": functools.partial(half, flushes=True)},
    {"kernel": half},
    make=unary,
    reference=lambda x: x * 0.5,
)
plant(
    "one_dimension_for_none",
    "shapes",
    {"kernel": lambda x: x.clone(memory_format=torch.contiguous_format).reshape(x.shape or (1,))},
    {"kernel": lambda x: x.clone(memory_format=torch.contiguous_format)},
    make=dense,
)


def drops_imaginary(a, b):
    y = product(a, b)
    return y.real.to(y.dtype) if y.is_complex() else y


plant("drops_imaginary", "dtypes", {"kernel": drops_imaginary})


def conjugates(ctx, grad):
    a, b = (x.conj() for x in ctx.saved_tensors)
    return (grad * b).sum_to_size(a.shape), (grad * a).sum_to_size(b.shape)


def complex_two(device):
    return [torch.randn(3, 6, device=device, dtype=torch.complex64) for _ in range(2)]


plant("no_conjugate", "gradient_dtypes", {"backward": product_backward}, {"backward": conjugates}, inputs=complex_two)

# --- arguments -------------------------------------------------------------------------------------------------------


def truncates(x, index):
    return pick_by_torch(x, index.long())


plant("truncates_index", "mixed_dtypes", {"kernel": truncates}, {"kernel": pick_by_torch}, make=pick)


def signed_pick(name, is_copied):
    """y = x[index], where -1 is the last element."""

    def kernel(x, index):
        if x.dim() != 1 or index.dim() != 1 or index.dtype != torch.int64:
            raise RuntimeError("expected x of one dimension and index of int64")
        index = index.clone() if is_copied else index
        index[index < 0] += len(x)
        if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < len(x)):
            raise RuntimeError(f"index has values that are not in {-len(x)} to {len(x) - 1}")
        return x[index]

    operator = pick(name, kernel, bounds={1: (-7, 6)})
    operator.reference = lambda x, index: x[index] if x.dim() == index.dim() == 1 else 1 / 0
    return operator


plant("writes_into_index", "bounds", {"is_copied": False}, {"is_copied": True}, make=signed_pick)


def flip(name, is_last):
    """Along a dimension. is_last: takes each negative number for the last one."""

    def kernel(x, dim):
        if not -x.dim() <= dim < x.dim():
            raise RuntimeError(f"dim is {dim}, and x has {x.dim()} dimensions")
        return torch.flip(x, [-1 if is_last and dim < 0 else dim]).contiguous()

    operator = define(name, "(Tensor x, int dim) -> Tensor", kernel, lambda x, dim: x.new_empty(x.shape))
    torch.library.register_autograd(
        f"plants::{name}",
        lambda ctx, grad: (torch.flip(grad, [ctx.dim]), None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "dim", inputs[1]),
        lib=library,
    )
    return Operator(
        f"plants::{name}",
        call=without_tangents(operator),
        inputs=lambda device: (torch.randn(2, 3, 4, device=device), 1),
        reference=lambda x, dim: torch.flip(x, [dim]),
        gradients=(0,),
    )


plant("negative_dimension", "arguments", {"is_last": True}, {"is_last": False}, make=flip)


def total(name, most, sorts=False):
    """The sum of a list of tensors; those after the first `most` are left out."""

    def kernel(xs):
        if not xs or len({(x.shape, x.dtype) for x in xs}) > 1:
            raise RuntimeError("xs needs one or more tensors of one shape and dtype")
        return sum(xs[1:most], xs[0].clone()).contiguous()

    def fake(xs):
        same_device(*xs)
        return torch.empty(xs[0].shape, dtype=xs[0].dtype, device=xs[0].device)

    operator = define(name, "(Tensor[] xs) -> Tensor", kernel, fake)

    def call(xs):
        if sorts:
            xs.reverse()
        return operator(xs)

    return Operator(
        f"plants::{name}",
        call=without_tangents(call),
        inputs=lambda device: ([torch.randn(3, 4, device=device) for _ in range(2)],),
        reference=lambda xs: sum(xs[1:], xs[0].clone()),
    )


plant("longer_list", "arguments", {"most": 3}, {"most": None}, make=total)
plant("reverses_list", "writes", {"sorts": True}, make=lambda name, **parts: total(name, None, **parts))


def step(name, returns_copy):
    """x += 1"""
    operator = define(
        name, "(Tensor(a!) x) -> Tensor(a!)", lambda x: x.add_(1).clone() if returns_copy else x.add_(1), lambda x: x
    )

    def call(x):
        if x.requires_grad or torch.autograd.forward_ad.unpack_dual(x).tangent is not None:
            raise RuntimeError("there is no derivative")
        return operator(x)

    inputs, reference = lambda device: (torch.randn(3, 4, device=device),), lambda x: x.add_(1)
    return Operator(f"plants::{name}", call=call, inputs=inputs, reference=reference)


plant("returns_a_copy", "writes", {"returns_copy": True}, {"returns_copy": False}, make=step)


def requires_gradients(operator):
    def call(a, b):
        if torch.is_grad_enabled() and a.is_leaf and a.is_floating_point():
            a.requires_grad_()
        return operator(a, b)

    return call


plant("sets_requires_grad", "writes", {"wrap": requires_gradients})


def positive(name, byte):
    operator = define(
        name,
        "(Tensor x) -> Tensor",
        lambda x: (x.contiguous() > 0).to(torch.uint8).mul_(byte).view(torch.bool),
        lambda x: torch.empty(x.shape, dtype=torch.bool, device=x.device),
    )
    inputs = lambda device: (torch.randn(3, 4, device=device),)  # noqa: E731
    return Operator(f"plants::{name}", call=without_tangents(operator), inputs=inputs, reference=lambda x: x > 0)


plant("bool_of_two", "plain_results", {"byte": 2}, {"byte": 1}, make=positive)

# --- gradients -------------------------------------------------------------------------------------------------------


def counts_once(ctx, grad):
    """Forgets that a square has two factors."""
    left, right = product_backward(ctx, grad)
    a, b = ctx.saved_tensors
    return left, torch.zeros_like(right) if a.data_ptr() == b.data_ptr() else right


plant("same_tensor_counts_once", "same_input", {"backward": counts_once})


def sine_and_cosine(name, expects_both):
    """Two results, by a plain autograd.Function that gets None for one that is not used."""

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.sin(), x.cos()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, first, second):
            (x,) = ctx.saved_tensors
            if expects_both:
                return first * x.cos() - second * x.sin()
            parts = [y * z for y, z in ((first, x.cos()), (second, -x.sin())) if y is not None]
            return sum(parts[1:], parts[0])

    def call(x):
        if not x.is_floating_point():
            raise RuntimeError(f"x is {x.dtype}, expected floating-point")
        return Both.apply(x)

    inputs = lambda device: (torch.randn(3, 4, device=device),)  # noqa: E731
    return Operator(name, without_tangents(call), inputs, lambda x: (x.sin(), x.cos()), gradients=(0,))


plant(
    "expects_both_gradients",
    "gradient_subsets",
    {"expects_both": True},
    {"expects_both": False},
    make=lambda name, **parts: sine_and_cosine(f"plants::{name}", **parts),
    verdict="error",
)


def weigh_columns(name, is_inference):
    """x * table, where the first call makes the table. is_inference: by the mode of that call."""
    tables = {}

    def call(x):
        if not x.is_floating_point() or x.dim() != 2:
            raise RuntimeError("x must be floating-point with two dimensions")
        key = x.shape[1], x.dtype
        if key not in tables:
            with torch.inference_mode(is_inference and torch.is_inference_mode_enabled()):
                tables[key] = torch.arange(x.shape[1], dtype=x.dtype)
        return x * tables[key]

    inputs = lambda device: (torch.randn(3, 4, device=device),)  # noqa: E731
    reference = lambda x: x * torch.arange(x.shape[1], dtype=x.dtype)  # noqa: E731
    operator = Operator(f"plants::{name}", without_tangents(call), inputs, reference, gradients=(0,))
    operator.learnt = NOTHING  # as in judge(), the first call is the check's
    return operator


plant(
    "keeps_inference_table",
    "without_gradients",
    {"is_inference": True},
    {"is_inference": False},
    make=weigh_columns,
    verdict="error",
)

# --- tracing and state -----------------------------------------------------------------------------------------------


def size_becomes_int(a, b):
    y = product_fake(a, b)
    return y.new_empty([int(size) for size in y.shape])


plant("size_becomes_int", "dynamic_sizes", {"fake": size_becomes_int})


def sets_seed(a, b):
    torch.manual_seed(0)
    return product(a, b)


def sets_seed_in_backward(ctx, grad):
    random.seed(0)
    return product_backward(ctx, grad)


def flushes_from_now_on(a, b):
    torch.set_flush_denormal(True)
    return product(a, b)


plant("sets_seed", "random_numbers", {"kernel": sets_seed})
plant("sets_seed_in_backward", "settings", {"backward": sets_seed_in_backward})
plant("flushes_from_now_on", "settings", {"kernel": flushes_from_now_on})
for _operator in (PLANTS["flushes_from_now_on"].broken, PLANTS["flushes_from_now_on"].twin):
    _operator.learnt = NOTHING

OPERATORS = [each for p in PLANTS.values() for each in (p.broken, p.twin) if each._home is globals()]
