"""Second derivatives, tangents, torch.func. Refusing one is right; losing one is not."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .gradients import (
    THEIRS,
    added,
    compare_gradients,
    difference_quotient,
    function_of,
    leaves_of,
    loss,
    need_gradient,
    weight,
)
from .operator import Operator, get, places_of_tensors
from .registry import Trials, check, trial
from .trial import (
    NotApplicable,
    Wrong,
    accepts,
    cast,
    compare,
    compare_values,
    filled,
    floating,
    other_values,
    places_with_gradient,
)


def second_derivatives_of(function: Callable, leaves: Sequence[Tensor]) -> list[Tensor]:
    first = torch.autograd.grad(sum(y.square().sum() for y in function(*leaves)), leaves, create_graph=True)
    total = added((x * weight(x)).sum() for x in first)
    if not total.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    total.backward()  # grad(allow_unused=True) would pass by what once_differentiable refuses
    return [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]


def precise_inputs(operator: Operator, device: str) -> list:
    """In float64 if the operator takes it: otherwise a difference quotient drowns in rounding."""
    inputs = cast(operator.fresh(device), torch.float64)
    if operator.reference is None and not accepts(operator, inputs):
        raise NotApplicable("no reference, and float64 is refused")
    return inputs if accepts(operator, inputs) else operator.fresh(device)


def second_is_right(operator: Operator, device: str) -> None:
    """The gradient of the gradient: of the reference, or a difference quotient of gradients."""
    inputs = precise_inputs(operator, device)
    places = places_with_gradient(operator, inputs)
    function = function_of(operator, inputs, places)
    found = second_derivatives_of(function, leaves_of(inputs, places))
    if operator.reference is not None:
        theirs = function_of(operator, inputs, places, THEIRS)
        right = second_derivatives_of(theirs, leaves_of(inputs, places))
        return compare_gradients(operator, found, right, factor=50, what="second derivative by input")

    def first(*xs: Tensor) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in xs]
        return list(torch.autograd.grad(sum(y.square().sum() for y in function(*leaves)), leaves))

    xs = [get(inputs, place) for place in places]
    for k, x in enumerate(found):
        directions = [weight(y) if j == k else torch.zeros_like(y) for j, y in enumerate(found)]
        change = added((y * weight(y)).sum() for y in difference_quotient(first, xs, directions))
        found_change = (x * directions[k]).sum()
        compare_values(f"second derivative by input {places[k][0]}", found_change[None], change[None], 1e-3)


@check(
    "write backward with operators that have a gradient, or mark it once_differentiable",
    "4_gradients",
    because_of=(
        "backward_twice",
        "gradients",
    ),
)
def second_derivatives(operator: Operator, device: str) -> Trials:
    """Is the second derivative right, or refused?"""
    need_gradient(operator, operator.fresh(device))
    yield trial(second_is_right)


DUALS = ("make_dual", "jvp", "make_dual of leaves")


def tangents_of(function: Callable, xs: Sequence[Tensor], directions: Sequence[Tensor], way: str) -> list[Tensor]:
    """Forward derivatives; zeros where a result has none."""
    if way == "jvp":
        return list(torch.func.jvp(lambda *ys: tuple(function(*ys)), tuple(xs), tuple(directions))[1])
    if way == "make_dual of leaves":  # that require a gradient, too
        xs = [x.detach().requires_grad_() for x in xs]
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, v) for x, v in zip(xs, directions, strict=True)]
        pairs = [forward_ad.unpack_dual(y) for y in function(*duals)]
        return [torch.zeros_like(y) if tangent is None else tangent.clone() for y, tangent in pairs]


def tangent_is_right(operator: Operator, device: str, places: list, way: str) -> None:
    """As the reference's, or else the difference quotient."""
    inputs = precise_inputs(operator, device)
    xs = [get(inputs, place) for place in places]
    directions = [weight(x) for x in xs]
    if operator.reference is not None:
        right = tangents_of(function_of(operator, inputs, places, THEIRS), xs, directions, "make_dual")
    else:
        right = difference_quotient(function_of(operator, inputs, places), xs, directions)
    if not any(x.abs().sum() > 0 for x in right):
        raise NotApplicable("the result does not depend on it")
    found = tangents_of(function_of(operator, inputs, places), xs, directions, way)
    is_lost = not any(x.abs().sum() > 0 for x in found)
    if is_lost:
        default = torchs_default(operator, inputs)
        raise Wrong(f"the forward derivative by inputs {places} is silently 0{default}", bool(default))
    compare(operator, found, [x.to(y.dtype) for x, y in zip(right, found, strict=True)], factor=50, what="tangent")


def torchs_default(operator: Operator, inputs: Sequence) -> str:
    """Whether torch's own code has dropped the tangent."""
    places = places_with_gradient(operator, inputs) or floating(inputs)
    try:
        results = function_of(operator, inputs, places)(*leaves_of(inputs, places))
    except Exception:
        return ""
    nodes = " ".join(type(y.grad_fn).__name__ for y in results)
    if "GeneratedBackwardFor" in nodes and not operator.gradients:
        return " (torch's default for an operator of custom_op)"
    if "GeneratedBackwardFor" in nodes:
        return " (torch's default: its gradient was registered by register_autograd, which drops tangents)"
    if "NotImplemented" in nodes:
        return " (torch's default for an operator without an autograd kernel)"
    return ""


@check(
    "refuse inputs with a tangent (forward_ad.unpack_dual(x).tangent is not None), or compute by torch's functions",
    "4_gradients",
    because_of=("values", "gradients", "lost_gradients"),
)
def tangents(operator: Operator, device: str) -> Trials:
    """Is a forward derivative right, or refused?"""
    inputs = operator.fresh(device)
    places = [place for place in floating(inputs) if place not in operator.written()]
    with_gradient = places_with_gradient(operator, inputs)
    for some in [[place] for place in places] + [with_gradient] * (len(with_gradient) > 1):
        for way in DUALS:
            yield trial(tangent_is_right, places=some, way=way)


def transform_is_right(operator: Operator, device: str, transform: str, which: int) -> None:
    """As the gradient by autograd, or the Jacobian made of its rows."""
    inputs = operator.fresh(device)
    places = places_with_gradient(operator, inputs)
    function, xs = function_of(operator, inputs, places), [get(inputs, place) for place in places]
    x = xs[which]

    def by_one(y: Tensor) -> Tensor:
        return loss(function)(*xs[:which], y, *xs[which + 1 :])

    # For the matrices: 16 elements of the input, and about 16 of the results.
    some = torch.linspace(0, x.numel() - 1, min(x.numel(), 16), device=x.device).long()

    def whole(y: Tensor) -> Tensor:
        return x.flatten().scatter(0, some, y).view(x.shape)

    def rows(y: Tensor) -> Tensor:
        results = torch.cat([z.flatten() for z in function(*xs[:which], whole(y), *xs[which + 1 :])])
        return results[:: max(results.numel() // 16, 1)]

    many = torch.stack([x, -2 * x])
    if transform == "grad":
        found, right = torch.func.grad(by_one)(x), _autograd(by_one, x)
    elif transform == "vjp":
        value, backward, *_ = torch.func.vjp(by_one, x)
        found, right = backward(torch.ones_like(value))[0], _autograd(by_one, x)
    elif transform == "vmap of grad":
        found, right = torch.vmap(torch.func.grad(by_one))(many), torch.stack([_autograd(by_one, y) for y in many])
    elif transform == "grad of vmap":
        found = torch.func.grad(lambda ys: torch.vmap(by_one)(ys).sum())(many)
        right = torch.stack([_autograd(by_one, y) for y in many])
    elif transform == "jvp of jvp":
        direction = weight(x)
        found = _along(lambda y: _along(by_one, y, direction), x, direction)
        right = torch.autograd.functional.hvp(by_one, x, direction)[1].mul(direction).sum()
    elif transform in ("jacrev", "jacfwd"):
        found, right = getattr(torch.func, transform)(rows)(x.flatten()[some]), _jacobian(rows, x.flatten()[some])
    else:
        found = torch.func.hessian(lambda y: by_one(whole(y)))(x.flatten()[some])
        right = torch.autograd.functional.hessian(lambda y: by_one(whole(y)), x.flatten()[some])
    what = f"torch.func, {transform}, input {places[which][0]}; derivative"
    try:
        compare_gradients(operator, [found], [right], factor=50, what=what)
    except Wrong as error:
        is_torchs = transform == "jvp of jvp" and (operator.packet is None or operator.name.startswith("aten"))
        default = " (torch's own layer_norm and linalg.solve are wrong here, too)" * is_torchs
        raise Wrong(f"{error}{default}", is_torchs) from None


def _along(function: Callable, x: Tensor, direction: Tensor) -> Tensor:
    return torch.func.jvp(function, (x,), (direction,))[1]


def _autograd(function: Callable, x: Tensor) -> Tensor:
    leaf = x.detach().clone().requires_grad_()
    return torch.autograd.grad(function(leaf), leaf)[0]


def _jacobian(rows: Callable, x: Tensor) -> Tensor:
    leaf = x.detach().clone().requires_grad_()
    y = rows(leaf)
    found = [torch.autograd.grad(each, leaf, retain_graph=True)[0] for each in y]
    return torch.stack(found).view(*y.shape, *x.shape)


TRANSFORMS = ("grad", "vjp", "vmap of grad", "grad of vmap", "jacrev", "jacfwd", "hessian", "jvp of jvp")


@check(
    "take autograd.Function with setup_context, or a function at the Autograd key",
    "4_gradients",
    because_of=("backward_twice", "gradients", "tangents", "second_derivatives", "vmap"),
)
def transforms(operator: Operator, device: str) -> Trials:
    """Are the derivatives of torch.func right, or refused?"""
    inputs = operator.fresh(device)
    places = need_gradient(operator, inputs)
    for which, transform in itertools.product(range(len(places)), TRANSFORMS):
        yield trial(transform_is_right, transform=transform, which=which)


def batch_is_right(operator: Operator, device: str, in_dims: list, size: int) -> None:
    """torch.vmap, compared with a loop. in_dims: a dimension, or None, for each tensor among the inputs."""
    inputs = operator.fresh(device)
    places = places_of_tensors(inputs)

    def function(*xs: Tensor) -> list[Tensor]:
        return operator.run(filled(operator, inputs, places, xs))

    many = []
    for place, dim in zip(places, in_dims, strict=True):
        x = get(inputs, place)
        versions = [other_values(operator, place, x, n) for n in range(size)]
        many.append(x if dim is None else torch.stack(versions, dim))
    try:
        rows = []
        for n in range(size):
            row = [x if dim is None else x.select(dim, n).clone() for x, dim in zip(many, in_dims, strict=True)]
            rows.append(function(*row))
        right = [torch.stack(column) for column in zip(*rows, strict=True)]
    except RuntimeError as error:
        raise NotApplicable(f"a loop cannot stack its results: {error}") from None
    found = list(torch.vmap(lambda *xs: tuple(function(*xs)), tuple(in_dims), randomness="same")(*many))
    compare(operator, found, right, factor=5, what=f"vmap with in_dims {in_dims}; result")


def nested_batch_is_right(operator: Operator, device: str, place: tuple) -> None:
    inputs = operator.fresh(device)

    def function(x: Tensor) -> list[Tensor]:
        return operator.run(filled(operator, inputs, [place], [x]))

    x = get(inputs, place)
    many = torch.stack([torch.stack([x * (n + 3 * m) for n in range(1, 3)]) for m in range(3)])
    right = [
        torch.stack([torch.stack([y]) for y in ys])
        for ys in zip(*(function(y) for y in many.flatten(0, 1)), strict=True)
    ]
    found = torch.vmap(torch.vmap(lambda y: tuple(function(y))))(many)
    compare(
        operator, [y.flatten(0, 1) for y in found], [y.squeeze(1) for y in right], factor=5, what="vmap of vmap; result"
    )


@check(
    "register_vmap: move each batch dimension to the front, and expand what has none",
    "3_operator",
    because_of=("values", "strides"),
    of_random=False,
)
def vmap(operator: Operator, device: str) -> Trials:
    """Is a batch by vmap that of a loop, along each dimension of each input, or refused?"""
    inputs = operator.fresh(device)
    places = places_of_tensors(inputs)
    count = len(places)
    for k in range(count):
        for dim in range(-1, get(inputs, places[k]).dim() + 1):
            yield trial(batch_is_right, in_dims=[dim if j == k else None for j in range(count)], size=3)
    if count > 1:
        for dim in (0, -1, 1):
            fits = all(get(inputs, place).dim() >= dim for place in places)
            if fits:
                yield trial(batch_is_right, in_dims=[dim] * count, size=3)
        yield trial(batch_is_right, in_dims=[0, *[-1] * (count - 1)], size=2)
        yield trial(batch_is_right, in_dims=[0] * count, size=1)
    for place in floating(inputs):
        yield trial(nested_batch_is_right, place=place)
