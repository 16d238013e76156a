"""Operators with one planted fault each, and a twin without it. tests/test_referee_plants.py has the referee find them.

Most compute a * b. The kernels are Python, or write memory through NumPy and ctypes, as a C++ kernel would.
"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

from lab.referee import Operator

library = torch.library.Library("plants", "DEF")


@dataclass
class Plant:
    check: str  # the one that has to find it
    broken: Operator
    twin: Operator
    verdict: str = "wrong"


PLANTS: dict[str, Plant] = {}


def product(a, b):
    return (a * b).contiguous()


def same_device(*tensors):
    torch._check(len({x.device for x in tensors}) == 1, lambda: "tensors on different devices")


def product_fake(a, b):
    same_device(a, b)
    dtype = torch.promote_types(a.dtype, b.dtype)
    return torch.empty(torch.broadcast_shapes(a.shape, b.shape), dtype=dtype, device=a.device)


def save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def product_backward(ctx, grad):
    a, b = ctx.saved_tensors
    return (grad * b).sum_to_size(a.shape), (grad * a).sum_to_size(b.shape)


def without_tangents(function: Callable) -> Callable:
    """register_autograd drops forward derivatives, so refuse them."""

    def call(*inputs):
        for x in tree_leaves(inputs):
            if isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None:
                raise NotImplementedError("there is no forward derivative")
        return function(*inputs)

    return call


def define(name, schema, kernel, fake, key="CPU"):
    library.define(f"{name}{schema}")
    library.impl(name, kernel, key)
    torch.library.register_fake(f"plants::{name}", fake, lib=library)
    return getattr(torch.ops.plants, name)


def two(device):
    return [torch.randn(3, 6, device=device), torch.randn(3, 6, device=device)]


def multiply(
    name,
    kernel=product,
    fake=product_fake,
    setup=save,
    backward=product_backward,
    vmap=None,
    wrap=None,
    key="CPU",
    **facts,
):
    """a * b with a gradient."""
    operator = define(name, "(Tensor a, Tensor b) -> Tensor", kernel, fake, key)
    torch.library.register_autograd(f"plants::{name}", backward, setup_context=setup, lib=library)
    if vmap:
        torch.library.register_vmap(f"plants::{name}", vmap, lib=library)
    facts = {"inputs": two, "reference": lambda a, b: a * b, "gradients": (0, 1)} | facts
    return Operator(f"plants::{name}", call=without_tangents(wrap(operator) if wrap else operator), **facts)


def plant(name, check, broken, clean=None, make=multiply, verdict="wrong", **facts):
    """broken and clean: the parts by which the two differ from the usual operator."""
    operators = [make(name + end, **parts, **facts) for end, parts in (("", broken), ("_twin", clean or {}))]
    PLANTS[name] = Plant(check, *operators, verdict)


# --- values ----------------------------------------------------------------------------------------------------------


def drops_nan(a, b):
    return torch.nan_to_num(a * b).contiguous()


def wrong_beyond_65536(a, b):
    y = product(a, b)
    y.view(-1)[65536:] = 0
    return y


def refuses_empty(a, b):
    if not a.numel():
        raise RuntimeError("CUDA error: invalid configuration argument")
    return product(a, b)


def refuses_empty_clearly(a, b):
    if not a.numel():
        raise RuntimeError("a has no elements, expected one or more")
    return product(a, b)


def wraps_around(a, b):
    """Reads b by its pointer, again from the start where it is shorter."""
    if a.dtype != b.dtype:
        raise RuntimeError(f"b is {b.dtype}, expected {a.dtype}")
    return torch.from_numpy(np.resize(b.numpy(), a.shape) * a.numpy()).to(a.dtype)


def wraps_around_checked(a, b):
    if a.shape != b.shape:
        raise RuntimeError(f"b has shape {[*b.shape]}, expected {[*a.shape]}")
    return wraps_around(a, b)


def reads_as_float32(a, b):
    """Reads the bytes of b as float32, even if b has another dtype."""
    if a.shape != b.shape or a.dtype != torch.float32:
        raise RuntimeError("b has another shape, or a is not float32")
    bytes_of_b = b.contiguous().view(torch.uint8).flatten()
    needed = a.numel() * 4
    pieces = torch.cat([bytes_of_b, torch.zeros(needed, dtype=torch.uint8)])[:needed]
    return (a * pieces.view(torch.float32).view(a.shape)).contiguous()


def reads_only_float32(a, b):
    if not a.dtype == b.dtype == torch.float32:
        raise RuntimeError(f"a is {a.dtype} and b {b.dtype}, expected float32")
    return reads_as_float32(a, b)


def computes_in_float(a, b):
    return (a.float() * b.float()).to(a.dtype).contiguous()


def computes_float64_in_float(a, b):
    return computes_in_float(a, b) if a.dtype == b.dtype == torch.float64 else product(a, b)


def noise(a, b):
    scale = 1 + 1e-5 * float(np.random.default_rng().random())
    return (a * b * scale).to(torch.promote_types(a.dtype, b.dtype)).contiguous()


CACHE, BUFFERS, KEPT = {}, {}, []


def cached(a, b):
    key = (a.data_ptr(), b.data_ptr(), a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype)
    if key not in CACHE:
        CACHE[key] = product(a, b)
    return CACHE[key].clone()


def reuses_buffer(a, b):
    y = product(a, b)
    return BUFFERS.setdefault((y.shape, y.dtype), torch.empty_like(y)).copy_(y)


def off_by_little(a, b):
    return (a * b * 1.001).to(torch.promote_types(a.dtype, b.dtype)).contiguous()


def forgets_incomplete_block(a, b):
    y = product(a, b)
    rest = y.numel() % 32
    if y.numel() > 32 and rest:
        y.view(-1)[-rest:] = 0
    return y


def one_address_is_a_square(a, b):
    """Takes equal addresses for a square, and forgets a factor."""
    return a.clone(memory_format=torch.contiguous_format) if a.data_ptr() == b.data_ptr() else product(a, b)


plant("off_by_little", "values", {"kernel": off_by_little})
plant("incomplete_block", "odd_sizes", {"kernel": forgets_incomplete_block})
plant("equal_addresses", "same_input", {"kernel": one_address_is_a_square})
plant("drops_nan", "special_values", {"kernel": drops_nan})
plant("wrong_beyond_65536", "large", {"kernel": wrong_beyond_65536})
plant("refuses_empty", "empty", {"kernel": refuses_empty}, {"kernel": refuses_empty_clearly}, verdict="error")
plant("accepts_other_shapes", "shapes", {"kernel": wraps_around}, {"kernel": wraps_around_checked})
plant("reads_as_float32", "mixed_dtypes", {"kernel": reads_as_float32}, {"kernel": reads_only_float32})
plant("float64_in_float32", "dtypes", {"kernel": computes_float64_in_float})
plant("random_rounding", "repeated", {"kernel": noise})
plant("cached_result", "stale", {"kernel": cached})
plant("reuses_buffer", "kept_results", {"kernel": reuses_buffer})


def row_mean_square(name, accumulate):
    """y[i] = sqrt(mean of x[i]^2)."""

    def kernel(x):
        if x.dtype not in (torch.float16, torch.float32, torch.float64):
            raise RuntimeError(f"x is {x.dtype}, expected float16, float32 or float64")
        if not x.dim():
            raise RuntimeError("x has no dimension")
        squares = (x.to(accumulate) if x.dtype is torch.float16 else x).square()
        return torch.cumsum(squares / x.shape[-1] * 1.0, -1)[..., -1].sqrt().to(x.dtype)

    operator = define(name, "(Tensor x) -> Tensor", kernel, lambda x: x.new_empty(x.shape[:-1]))

    def refuse(ctx, grad):
        raise NotImplementedError("there is no gradient")

    torch.library.register_autograd(f"plants::{name}", refuse, lib=library)
    return Operator(
        f"plants::{name}",
        call=without_tangents(operator),
        inputs=lambda device: (torch.randn(4, 16, device=device),),
        reference=lambda x: x.double().square().mean(-1).sqrt().to(x.dtype),
        sizes={"columns": [(0, 1)]},
    )


plant("sums_in_half", "long_sums", {"accumulate": torch.float16}, {"accumulate": torch.float32}, make=row_mean_square)


def pick_fake(x, index):
    same_device(x, index)
    return x.new_empty(index.shape)


def save_index(ctx, inputs, output):
    x, index = inputs
    ctx.save_for_backward(index)
    ctx.size = x.shape


def pick_by_torch(x, index):
    if x.dim() != 1 or index.dim() != 1 or index.dtype != torch.int64 or (index < 0).any():
        raise RuntimeError("refused")
    return x[index]


def pick(name, kernel, bounds={1: (0, 6)}):  # noqa: B006
    """y = x[index], for indices on a CPU."""
    operator = define(name, "(Tensor x, Tensor index) -> Tensor", kernel, pick_fake)
    torch.library.register_autograd(
        f"plants::{name}",
        lambda ctx, grad: (grad.new_zeros(ctx.size).index_add(0, ctx.saved_tensors[0], grad), None),
        setup_context=save_index,
        lib=library,
    )
    return Operator(
        f"plants::{name}",
        call=without_tangents(operator),
        inputs=lambda device: (torch.randn(7, device=device), torch.tensor([0, 6, 2, 2], device=device)),
        reference=pick_by_torch,
        gradients=(0,),
        bounds=bounds,
        sizes={"count": [(1, 0)]},
    )


def pick_by_address(x, index):
    """Follows each index, wherever it leads."""
    if x.dim() != 1 or index.dim() != 1 or index.dtype != torch.int64:
        raise RuntimeError("expected x of one dimension and index of int64")
    x = x.contiguous()
    y = torch.empty(index.shape, dtype=x.dtype)
    size = x.element_size()
    for k, i in enumerate(index.tolist()):
        ctypes.memmove(y.data_ptr() + k * size, x.data_ptr() + i * size, size)
    return y


def pick_checked(x, index):
    if index.numel() and not (int(index.min()) >= 0 and int(index.max()) < len(x)):
        raise RuntimeError(
            f"index has values from {int(index.min())} to {int(index.max())}, expected 0 to {len(x) - 1}"
        )
    return pick_by_address(x, index)


plant("index_unchecked", "bounds", {"kernel": pick_by_address}, {"kernel": pick_checked}, make=pick, verdict="any")
plant(
    "garbage_index",
    "garbage_values",
    {"kernel": pick_by_address},
    {"kernel": pick_checked},
    make=lambda name, kernel: pick(name, kernel, bounds={}),
    verdict="any",
)


def power(name, is_signed):
    """x to the power of a whole number."""

    def kernel(x, n):
        return torch.pow(x, n if is_signed else abs(n)).contiguous()

    operator = define(name, "(Tensor x, int n) -> Tensor", kernel, lambda x, n: x.new_empty(x.shape))
    torch.library.register_autograd(
        f"plants::{name}",
        lambda ctx, grad: (grad * ctx.n * ctx.saved_tensors[0] ** (ctx.n - 1), None),
        setup_context=save_power,
        lib=library,
    )

    def inputs(device):
        return torch.rand(3, 6, device=device) + 1, 2

    return Operator(f"plants::{name}", without_tangents(operator), inputs, torch.pow, gradients=(0,))


def save_power(ctx, inputs, output):
    x, ctx.n = inputs
    ctx.save_for_backward(x)


plant("negative_power", "arguments", {"is_signed": False}, {"is_signed": True}, make=power)

# --- memory ----------------------------------------------------------------------------------------------------------


def unwritten_tail(a, b):
    y = torch.empty(a.shape, dtype=torch.promote_types(a.dtype, b.dtype))
    n = y.numel() // 4 * 4
    y.view(-1)[:n] = (a * b).reshape(-1)[:n]
    return y


def mutates_b(a, b):
    y = product(a, b)
    b.data.clamp_(-1, 1)
    return y


def in_order_of_memory(a, b):
    """As a kernel that gets pointers: strides do not matter."""
    if a.shape != b.shape or a.dtype != b.dtype:
        raise RuntimeError("a and b differ in shape or dtype")
    flat = [x.as_strided((x.numel(),), (1,)) if x.numel() <= _reach(x) else x.reshape(-1) for x in (a, b)]
    return (flat[0] * flat[1]).view(a.shape).contiguous()


def _reach(x):
    return x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()


def in_order_of_elements(a, b):
    if a.shape != b.shape or a.dtype != b.dtype:
        raise RuntimeError("a and b differ in shape or dtype")
    return in_order_of_memory(a.contiguous(), b.contiguous())


def compares_all_strides(a, b):
    """Takes a fast path by the strides, and forgets that those of size 1 mean nothing."""
    if a.shape == b.shape and a.stride() != b.stride() and a.shape[:1] == (1,):
        return torch.zeros_like(a, memory_format=torch.contiguous_format)
    if a.is_contiguous() and a.shape[:1] == (1,) and a.stride(0) > 1000:
        return torch.zeros_like(a, memory_format=torch.contiguous_format)
    return product(a, b)


def reads_next_element(a, b):
    """A vector of loads runs past the end: the number there enters with a small weight."""
    y = product(a, b)
    if b.dim() and b.is_contiguous() and _reach(b) > b.numel() and y.numel():
        y.view(-1)[-1] += 0 * b.as_strided((1,), (1,), b.storage_offset() + b.numel())[0]
    return y


def reads_past_the_end(a, b):
    if b.numel() and b.device.type == "cpu":
        ctypes.c_char.from_address(b.data_ptr() + b.numel() * b.element_size()).value  # noqa: B018
    return product(a, b)


def reads_last(a, b):
    if b.numel() and b.device.type == "cpu":
        ctypes.c_char.from_address(b.data_ptr() + b.numel() * b.element_size() - 1).value  # noqa: B018
    return product(a, b)


def writes_past_the_end(a, b):
    y = product(a, b)
    if y.dtype == torch.float32:
        ctypes.c_float.from_address(y.data_ptr() + 4 * y.numel()).value = 1.5
    return y


def writes_last_again(a, b):
    y = product(a, b)
    if y.dtype == torch.float32 and y.numel():
        last = ctypes.c_float.from_address(y.data_ptr() + 4 * y.numel() - 4)
        last.value = last.value
    return y


libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]


def adds_to_scratch(a, b, is_cleared=False):
    """Adds to memory of the C library, which was never set."""
    y = product(a, b)
    scratch = libc.malloc(4096)
    if is_cleared:
        ctypes.memset(scratch, 0, 4096)
    number = ctypes.c_ubyte.from_address(scratch + 2000).value
    libc.free(scratch)
    return y + number if y.is_floating_point() else y


def uses_global_rng(a, b):
    torch.rand(())
    return product(a, b)


def leaks(a, b):
    y = product(a, b)
    KEPT.append(y.clone())
    return y


def negative_view(a, b):
    y = product(a, b)
    if y.dtype != torch.float32 or y.requires_grad:
        return y
    return torch.complex(torch.zeros_like(y), -y).conj().imag


plant("unwritten_tail", "unwritten", {"kernel": unwritten_tail})
plant("mutates_b", "writes", {"kernel": mutates_b})
plant("order_of_memory", "strides", {"kernel": in_order_of_memory}, {"kernel": in_order_of_elements})
plant("strides_of_size_one", "size_one", {"kernel": compares_all_strides})
plant("reads_next_element", "neighbours", {"kernel": reads_next_element})
plant("reads_past_the_end", "page_ends", {"kernel": reads_past_the_end}, {"kernel": reads_last}, verdict="crash")
plant(
    "writes_past_the_end",
    "after_results",
    {"kernel": writes_past_the_end},
    {"kernel": writes_last_again},
    verdict="any",
)
plant(
    "adds_to_scratch",
    "uninitialized",
    {"kernel": adds_to_scratch},
    {"kernel": lambda a, b: adds_to_scratch(a, b, is_cleared=True)},
)
plant("uses_global_rng", "random_numbers", {"kernel": uses_global_rng})
plant("leaks", "leaks", {"kernel": leaks})
plant("negative_view", "plain_results", {"kernel": negative_view})


def pair(name, kernel):
    """Two results: a * b and a + b."""
    define(
        name,
        "(Tensor a, Tensor b) -> (Tensor, Tensor)",
        kernel,
        lambda a, b: (product_fake(a, b), product_fake(a, b)),
    )

    def backward(ctx, first, second):
        a, b = ctx.saved_tensors
        return first * b + second, first * a + second

    torch.library.register_autograd(f"plants::{name}", backward, setup_context=save, lib=library)
    call, reference = without_tangents(getattr(torch.ops.plants, name)), lambda a, b: (a * b, a + b)
    return Operator(f"plants::{name}", call=call, inputs=two, reference=reference, gradients=(0, 1))


def dense(name, kernel):
    """x in row-major order."""
    operator = define(
        name, "(Tensor x) -> Tensor", kernel, lambda x: torch.empty(x.shape, dtype=x.dtype, device=x.device)
    )
    torch.library.register_autograd(f"plants::{name}", lambda ctx, grad: grad, lib=library)
    return Operator(
        f"plants::{name}",
        call=without_tangents(operator),
        inputs=lambda device: (torch.randn(3, 6, device=device),),
        reference=lambda x: x.clone(memory_format=torch.contiguous_format),
        gradients=(0,),
    )


plant(
    "returns_its_input",
    "aliases",
    {"kernel": lambda x: x.contiguous()},
    {"kernel": lambda x: x.clone(memory_format=torch.contiguous_format)},
    make=dense,
)


def pair_in_one_memory(a, b):
    both = torch.stack([a * b, a + b])
    return both[0], both[1]


plant(
    "results_share_memory",
    "aliases",
    {"kernel": pair_in_one_memory},
    {"kernel": lambda a, b: (product(a, b), (a + b).contiguous())},
    make=pair,
)


def write(name, kernel, raises_version=True, checks_c=True):
    """c[i] = a[i] + a[n - 1 - i], written into c."""
    operator = define(name, "(Tensor(a!) c, Tensor a) -> ()", kernel, lambda c, a: None)

    def call(c, a):
        tensors = (c, a)
        if torch.is_grad_enabled() and any(x.requires_grad for x in (tensors if checks_c else (a,))):
            raise RuntimeError("there is no gradient, and an argument requires one")
        if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
            raise NotImplementedError("there is no forward derivative")
        operator(c, a)
        if raises_version and not torch.compiler.is_compiling() and not c.is_inference():
            torch.autograd.graph.increment_version(c)

    def by_torch(c, a):
        if c.shape != a.shape:
            raise RuntimeError("shapes differ")
        c.copy_(a + a.flip(0))

    return Operator(
        f"plants::{name}",
        call=call,
        inputs=lambda device: (torch.zeros(8, device=device), torch.randn(8, device=device)),
        reference=by_torch,
    )


def check_mirror(c, a):
    if c.shape != a.shape or c.dtype != a.dtype or a.dim() != 1 or not a.is_floating_point():
        raise RuntimeError("expected two vectors of one length and floating-point dtype")


def mirror_plainly(c, a):
    """Reads elements after it may have written them."""
    check_mirror(c, a)
    for i in range(len(a)):
        c.data[i] = a[i] + a[len(a) - 1 - i]


def mirror(c, a):
    check_mirror(c, a)
    c.data.copy_(a + a.flip(0))


def mirror_by_address(c, a):
    """Writes a vector's elements one after the other, whatever the stride is."""
    check_mirror(c, a)
    y = (a + a.flip(0)).contiguous()
    ctypes.memmove(c.data_ptr(), y.data_ptr(), y.numel() * y.element_size())


def mirror_by_address_checked(c, a):
    if not c.is_contiguous():
        raise RuntimeError("c is not contiguous")
    mirror_by_address(c, a)


def mirror_resized(c, a):
    if c.shape != a.shape:
        c.resize_(a.shape)
    mirror(c, a)


plant("overlap", "overlaps", {"kernel": mirror_plainly}, {"kernel": mirror}, make=write)
plant("view_of_c", "written_views", {"kernel": mirror_by_address}, {"kernel": mirror_by_address_checked}, make=write)
plant("resizes_c", "resized_outputs", {"kernel": mirror_resized}, {"kernel": mirror}, make=write)
plant("version_stays", "version", {"raises_version": False}, make=lambda name, **parts: write(name, mirror, **parts))
plant("writes_a_leaf", "written_leaves", {"checks_c": False}, make=lambda name, **parts: write(name, mirror, **parts))


def note(name, schema):
    """Returns nothing: it does something else."""
    define(name, schema, lambda *tensors: KEPT.clear(), lambda *tensors: None)
    operator = getattr(torch.ops.plants, name)
    writes = "!" in schema

    def call(*tensors):
        if any(forward_ad.unpack_dual(x).tangent is not None or x.requires_grad for x in tensors):
            raise NotImplementedError("there is no derivative")
        operator(*tensors)

    def inputs(device):
        return [torch.zeros(1, device=device)] * writes + [torch.randn(5, device=device)]

    return Operator(f"plants::{name}", call=call, inputs=inputs)


plant("effect", "effects", {"schema": "(Tensor a) -> ()"}, {"schema": "(Tensor(a!) state, Tensor a) -> ()"}, make=note)

# --- derivatives -----------------------------------------------------------------------------------------------------


def second_is_zero(ctx, grad):
    a, b = ctx.saved_tensors
    return grad * b.detach(), grad * a.detach()


def refuses_second(ctx, grad):
    if torch.is_grad_enabled():
        raise RuntimeError("there is no second derivative")
    return product_backward(ctx, grad)


def half_gradient_wrong(ctx, grad):
    left, right = product_backward(ctx, grad)
    return (left * 2, right * 2) if grad.dtype is torch.float16 else (left, right)


def lost_gradient_b(ctx, grad):
    return product_backward(ctx, grad)[0], None


def save_on_ctx(ctx, inputs, output):
    ctx.a, ctx.b = inputs


def from_ctx(ctx, grad):
    return grad * ctx.b, grad * ctx.a


def reads_grad_by_address(ctx, grad):
    """Takes an expanded gradient for a contiguous one."""
    grad = torch.zeros_like(grad, memory_format=torch.contiguous_format) if 0 in grad.stride() else grad
    return product_backward(ctx, grad)


def changes_grad(ctx, grad):
    a, b = ctx.saved_tensors
    right = grad * a
    return grad.data.mul_(b), right


def changes_saved(ctx, grad):
    a, b = ctx.saved_tensors
    right = grad * a
    return b.data.mul_(grad), right


def save_needed(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def swaps_subsets(ctx, grad):
    left, right = product_backward(ctx, grad)
    return (left, left) if ctx.needs_input_grad == (False, True) else (left, right)


LAST = {}


def save_globally(ctx, inputs, output):
    LAST["inputs"] = inputs


def from_globals(ctx, grad):
    a, b = LAST["inputs"]
    return grad * b, grad * a


def casts_gradient(ctx, grad):
    return tuple(x.double() for x in product_backward(ctx, grad))


def doubled(ctx, grad):
    return tuple(2 * x for x in product_backward(ctx, grad))


def wrong_for_many(ctx, grad):
    return tuple(x * (1 if x.numel() < 5000 else 0) for x in product_backward(ctx, grad))


plant("gradient_doubled", "gradients", {"backward": doubled})
plant("gradient_of_many_is_zero", "gradient_sizes", {"backward": wrong_for_many})
plant("second_is_zero", "second_derivatives", {"backward": second_is_zero}, {"backward": refuses_second})
plant("half_gradient_wrong", "gradient_dtypes", {"backward": half_gradient_wrong})
plant("lost_gradient_b", "lost_gradients", {"backward": lost_gradient_b})
plant("saves_on_ctx", "saved", {"setup": save_on_ctx, "backward": from_ctx})
plant("expanded_grad_wrong", "arriving_gradients", {"backward": reads_grad_by_address})
plant("changes_grad", "backward_twice", {"backward": changes_grad})
plant("changes_saved", "backward_twice", {"backward": changes_saved})
plant("only_b_wrong", "gradient_subsets", {"backward": swaps_subsets})
plant("global_instead_of_ctx", "interleaved", {"setup": save_globally, "backward": from_globals})


def tangents(name, is_refused):
    operator = define(name, "(Tensor a, Tensor b) -> Tensor", product, product_fake)
    torch.library.register_autograd(f"plants::{name}", product_backward, setup_context=save, lib=library)
    call = without_tangents(operator) if is_refused else operator
    return Operator(f"plants::{name}", call=call, inputs=two, reference=lambda a, b: a * b, gradients=(0, 1))


plant("drops_tangents", "tangents", {"is_refused": False}, {"is_refused": True}, make=tangents)


def batched(is_right):
    """A rule for vmap that moves the batch dimension to the front; or forgets to, where it is the last one."""

    def rule(info, in_dims, a, b):
        operator = torch.ops.plants.wrong_batch_twin if is_right else torch.ops.plants.wrong_batch
        front = []
        for x, dim in zip((a, b), in_dims, strict=True):
            if dim is None:
                front.append(x.expand(info.batch_size, *x.shape))
            else:
                front.append(
                    x.movedim(dim, 0) if is_right or dim < x.dim() - 1 else x.reshape(info.batch_size, *x.shape[:-1])
                )
        return operator(*front), 0

    return rule


plant("wrong_batch", "vmap", {"vmap": batched(False)}, {"vmap": batched(True)})


def keeps_gradients_on(operator):
    def call(a, b):
        with torch.enable_grad():
            return operator(a, b)

    return call


plant("gradients_stay_on", "without_gradients", {"wrap": keeps_gradients_on})

# --- tracing ---------------------------------------------------------------------------------------------------------


def fake_strides(a, b):
    same_device(a, b)
    return torch.empty_like(a) if a.shape == b.shape else product_fake(a, b)


def fake_dtype_half(a, b):
    y = product_fake(a, b)
    return y.float() if y.dtype is torch.float16 else y


def fake_one_row(a, b):
    """Thinks of one row only."""
    y = product_fake(a, b)
    return y.new_empty((max(y.shape[0], 1), *y.shape[1:])) if y.dim() else y


def fake_anywhere(a, b):
    return a.new_empty(torch.broadcast_shapes(a.shape, b.shape), dtype=torch.promote_types(a.dtype, b.dtype))


plant("fake_anywhere", "devices", {"fake": fake_anywhere})
plant("fake_strides", "fake", {"fake": fake_strides})
plant("fake_dtype_half", "fake", {"fake": fake_dtype_half})
plant("fake_one_row", "fake", {"fake": fake_one_row})


def unwraps(operator):
    def call(a, b):
        return operator(*(x.as_subclass(torch.Tensor) if isinstance(x, torch.Tensor) else x for x in (a, b)))

    return call


plant("loses_subclass", "modes_and_subclasses", {"wrap": unwraps})


def autocast(name, scale):
    """Casts to bfloat16 first."""
    made = multiply(name)

    def cast_first(a, b):
        with torch.autocast("cpu", enabled=False):
            return getattr(torch.ops.plants, name)(a.bfloat16(), b.bfloat16() * scale)

    library.impl(name, cast_first, "AutocastCPU")
    return made


plant("autocast_wrong", "autocast", {"scale": 2}, {"scale": 1}, make=autocast)


def only_plain_calls_are_checked(operator):
    def call(a, b):
        if not torch.is_inference_mode_enabled() and a.shape != b.shape:
            raise RuntimeError("a and b differ in shape")
        return operator(a, b)

    return call


def all_calls_are_checked(operator):
    def call(a, b):
        if a.shape != b.shape:
            raise RuntimeError("a and b differ in shape")
        return operator(a, b)

    return call


plant(
    "unchecked_in_inference_mode",
    "refusals",
    {"wrap": only_plain_calls_are_checked},
    {"wrap": all_calls_are_checked},
    wrong={"differ in shape": {1: lambda b: b[:1]}},
)

# --- process state ---------------------------------------------------------------------------------------------------


def changes_default_dtype(a, b):
    torch.set_default_dtype(torch.float64)
    if a.dtype.is_complex:
        raise RuntimeError("complex numbers are not supported")  # and the default stays
    torch.set_default_dtype(torch.float32)
    return product(a, b)


def refuses_complex(a, b):
    if a.dtype.is_complex:
        raise RuntimeError("complex numbers are not supported")
    return product(a, b)


def takes_default_dtype(a, b):
    factor = torch.ones(1)  # by the caller's default: float16 rounds, meta has no value
    return (
        (a * b * factor * (1 + torch.tensor([3e-4]) - torch.tensor([3e-4])))
        .to(torch.promote_types(a.dtype, b.dtype))
        .contiguous()
    )


def shares_scratch(a, b):
    y = product(a, b)
    scratch = BUFFERS.setdefault(("scratch", y.shape, y.dtype), torch.empty_like(y))
    scratch.copy_(y)
    time.sleep(1e-5)  # other threads run
    return scratch.clone()


plant("setting_after_an_error", "settings", {"kernel": changes_default_dtype}, {"kernel": refuses_complex})
plant("default_dtype", "callers_settings", {"kernel": takes_default_dtype})
plant("shared_scratch", "threads", {"kernel": shares_scratch})

OPERATORS = [each for p in PLANTS.values() for each in (p.broken, p.twin)]
