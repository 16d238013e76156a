"""Gradients: is each right, and is none lost? Refusing one is right; losing one is not."""

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .operator import Operator, copies, first_line, get, places_of_tensors
from .registry import Trials, check, trial
from .trial import (
    NotApplicable,
    Unclear,
    Wrong,
    accepts,
    cast,
    compare,
    compare_values,
    expected_or_none,
    filled,
    floating,
    groups_of,
    is_affordable,
    other_values,
    places_with_gradient,
    require,
    resize_without_ties,
    same_bits,
)
from .views import view_of

OURS, THEIRS = "the operator", "the reference"


def function_of(operator: Operator, inputs: Sequence, places: Sequence, which: str = OURS) -> Callable:
    """The floating-point results, as a function of some of the inputs. Complex ones are pairs of real numbers."""

    def function(*xs: Tensor) -> list[Tensor]:
        some = filled(operator, inputs, places, xs)
        results = operator.run(some) if which == OURS else operator.expected(some)
        real = [torch.view_as_real(y.resolve_conj()) if y.is_complex() else y for y in results]
        return [y for y in real if y.is_floating_point()]

    return function


def leaves_of(inputs: Sequence, places: Sequence) -> list[Tensor]:
    return [get(inputs, place).detach().clone().requires_grad_() for place in places]


def weight(y: Tensor) -> Tensor:
    """A gradient that arrives at y: other numbers for each element, in any dtype."""
    return torch.arange(y.numel(), device=y.device).add(1).double().cos().to(y.dtype).view(y.shape)


def added(numbers: Iterable[Tensor]) -> Tensor:
    """Their sum; they may have several dtypes."""
    return functools.reduce(torch.add, numbers)


def loss(function: Callable) -> Callable:
    return lambda *xs: sum((y * weight(y)).sum() for y in function(*xs))


def zeros_for_none(ys: Sequence[Tensor], xs: Sequence[Tensor], weights: Sequence[Tensor], **options) -> list[Tensor]:
    """torch.autograd.grad, with zeros for an input on which no result depends."""
    found = torch.autograd.grad(ys, xs, weights, allow_unused=True, **options)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(xs, found, strict=True)]


def gradients_of(function: Callable, leaves: Sequence[Tensor], **options) -> list[Tensor]:
    """Of the weighted sum of the results; zeros where there is none."""
    results = [y for y in function(*leaves) if y.requires_grad]
    require(bool(results), "no result requires a gradient, although the inputs do")
    return zeros_for_none(results, leaves, [weight(y) for y in results], **options)


def difference_quotient(function: Callable, xs: Sequence[Tensor], directions: Sequence[Tensor]) -> list[Tensor]:
    """(f(x + h v) - f(x - h v)) / 2h, for inputs in float64. NotApplicable where another h gives another value."""
    quotients = []
    for h in (1e-5, 1e-6):
        above = function(*(x + h * v for x, v in zip(xs, directions, strict=True)))
        below = function(*(x - h * v for x, v in zip(xs, directions, strict=True)))
        quotients.append([(a.double() - b.double()) / (2 * h) for a, b in zip(above, below, strict=True)])
    for a, b in zip(*quotients, strict=True):
        try:
            compare_values("quotient", a, b, 1e-3)
        except Wrong:
            raise NotApplicable("no reference, and the difference quotient does not settle") from None
    return quotients[0]


def compare_gradients(
    operator: Operator, found: Sequence[Tensor], right: Sequence[Tensor], factor: float, what: str = "gradient"
) -> None:
    """As compare(). But terms that cancel leave some roundings: such a difference is right, and where all that is right
    is 0, or what rounding leaves of 0, all that is small."""
    allowed = []
    for x, y in zip(found, right, strict=True):
        if x.shape == y.shape and x.dtype == y.dtype:
            roundings = 16 * torch.finfo(y.dtype).eps
            is_small = (x.abs() <= factor * operator.tolerance_of(y.dtype)).all() & (y.abs() <= roundings).all()
            y = x.where(((x - y).abs() <= roundings) | is_small, y)
        allowed.append(y)
    compare(operator, found, allowed, factor, what)


def need_gradient(operator: Operator, inputs: Sequence) -> list:
    places = places_with_gradient(operator, inputs)
    if not places:
        raise NotApplicable("no input has a gradient")
    return places


def away_from_jumps(
    operator: Operator, found: Sequence[Tensor], right: Sequence[Tensor], theirs: Callable, leaves: Sequence[Tensor]
) -> list[Tensor]:
    """The right gradients, but for elements where the reference's gradient jumps within a few roundings of the inputs,
    as that of floor(x) * x at a whole number. There `found` may be either. All are kept if a tenth or more jump."""
    jumps = [torch.zeros_like(x, dtype=torch.bool) for x in right]
    for sign in (1, -1):
        moved = []
        for x, y in zip(leaves, found, strict=True):
            size = x.detach().square().mean().sqrt()
            step = 16 * torch.finfo(y.dtype).eps * torch.maximum(x.detach().abs(), size)
            moved.append((x.detach() + sign * step).requires_grad_())
        for jump, x, y in zip(jumps, gradients_of(theirs, moved), right, strict=True):
            allowed = 20 * operator.tolerance_of(y.dtype) * torch.maximum(y.abs(), y.square().mean().sqrt())
            jump |= (x.to(y.dtype) - y).abs() > allowed
    if any(10 * int(jump.sum()) >= jump.numel() for jump in jumps):
        return list(right)
    return [x.where(jump, y) for x, y, jump in zip(found, right, jumps, strict=True)]


def precise_if_possible(operator: Operator, inputs: Sequence) -> list:
    """The inputs in float64, if the reference takes them."""
    precise = cast(inputs, torch.float64)
    return list(inputs) if expected_or_none(operator, precise) is None else precise


def gradient_is_right(operator: Operator, device: str, dtype: torch.dtype | None) -> None:
    """As the reference's gradient, or else the difference quotient. dtype None: the inputs as they are."""
    inputs = operator.fresh(device) if dtype is None else cast(operator.fresh(device), dtype)
    if not accepts(operator, inputs):
        raise NotApplicable(f"{dtype} is refused")
    places = places_with_gradient(operator, inputs)
    try:
        found = gradients_of(function_of(operator, inputs, places), leaves_of(inputs, places))
    except TypeError as error:  # a function of the gradient has other parameters than torch passes, for example
        raise Unclear(f"the description names gradients {operator.gradients}: {first_line(error)}") from None
    for place, x in zip(places, found, strict=True):
        own = get(inputs, place).dtype
        require(x.dtype == own, f"the gradient of input {place[0]} is {x.dtype}, expected {own}")
    if operator.reference is not None:
        precise = precise_if_possible(operator, inputs)
        theirs = function_of(operator, precise, places, THEIRS)
        right = gradients_of(theirs, leaves_of(precise, places))
        right = [x.to(y.dtype) for x, y in zip(right, found, strict=True)]
        try:
            return compare_gradients(operator, found, right, factor=20)
        except Wrong:
            right = away_from_jumps(operator, found, right, theirs, leaves_of(precise, places))
            return compare(operator, found, right, factor=20, what="gradient")
    if dtype != torch.float64:
        raise NotApplicable("no reference")
    function, xs = function_of(operator, inputs, places), [get(inputs, place) for place in places]
    for k, x in enumerate(found):
        directions = [torch.zeros_like(y) for y in found]
        directions[k] = weight(x)
        changes = difference_quotient(function, xs, directions)
        change = added((y * weight(y)).sum() for y in changes)
        compare_values(f"derivative by input {places[k][0]}", (x * directions[k]).sum()[None], change[None], 1e-4)


def gradient_of_views_is_right(operator: Operator, device: str, view: str) -> None:
    """As that of contiguous inputs: backward reads what was saved, which has the views' strides."""
    inputs = operator.fresh(device)
    places = places_with_gradient(operator, inputs)
    function = function_of(operator, inputs, places)
    right = gradients_of(function, leaves_of(inputs, places))
    views = [view_of(get(inputs, place), view) for place in places]
    leaves = [x.detach().requires_grad_() for x in views if x is not None]
    if len(leaves) < len(places):
        raise NotApplicable("an input has no such view")
    compare_gradients(operator, gradients_of(function, leaves), right, 20, f"inputs are views ({view}); gradient")


def gradient_of_zeros_is_a_number(operator: Operator, device: str, place: tuple) -> None:
    """Where the reference's is one. At a kink it may be another one."""
    inputs = operator.fresh(device)
    get(inputs, place).zero_()
    places = places_with_gradient(operator, inputs)
    if expected_or_none(operator, inputs) is None:
        raise NotApplicable("no reference")
    right = gradients_of(function_of(operator, inputs, places, THEIRS), leaves_of(inputs, places))
    found = gradients_of(function_of(operator, inputs, places), leaves_of(inputs, places))
    for other, x, y in zip(places, found, right, strict=True):
        is_new = (x.isnan() & ~y.isnan()).any()
        require(not is_new, f"input {place[0]} is 0; the gradient of input {other[0]} is NaN, expected a number")


@check(
    "compare it with the formula, by gradcheck in float64",
    "4_gradients",
    because_of=("values", "lost_gradients", "writes"),
)
def gradients(operator: Operator, device: str) -> Trials:
    """Is the gradient right?"""
    inputs = operator.fresh(device)
    places = need_gradient(operator, inputs)
    for dtype in (None, torch.float64, torch.float32):
        yield trial(gradient_is_right, dtype=dtype)
    if not operator.is_random:
        for view in ("dimensions reversed", "every other element"):
            yield trial(gradient_of_views_is_right, view=view)
        for place in places:
            yield trial(gradient_of_zeros_is_a_number, place=place)


def complex_places(inputs: Sequence) -> list:
    return [place for place in places_of_tensors(inputs) if get(inputs, place).is_complex()]


def complex_gradient_is_right(operator: Operator, device: str) -> None:
    """As the reference's. An input that is not complex has its gradient in other trials."""
    inputs = operator.fresh(device)
    places = [place for place in complex_places(inputs) if place[0] in operator.gradients]
    if expected_or_none(operator, inputs) is None:
        raise NotApplicable("no reference")
    found = gradients_of(function_of(operator, inputs, places), leaves_of(inputs, places))
    right = gradients_of(function_of(operator, inputs, places, THEIRS), leaves_of(inputs, places))
    compare(operator, found, right, factor=20, what="gradient of complex numbers")


@check("a kernel for another dtype is other code: compare each", "4_gradients", because_of=("gradients", "dtypes"))
def gradient_dtypes(operator: Operator, device: str) -> Trials:
    """Is the gradient right in float16, bfloat16 and for complex inputs, and has it the dtype of the input?"""
    inputs = operator.fresh(device)
    if any(place[0] in operator.gradients for place in complex_places(inputs)):
        yield trial(complex_gradient_is_right)
    need_gradient(operator, inputs)
    for dtype in (torch.float16, torch.bfloat16):
        yield trial(gradient_is_right, dtype=dtype)


def gradient_at_size_is_right(operator: Operator, device: str, group: str, size: int) -> None:
    """As at other sizes; the backward pass often is a kernel of its own."""
    inputs = resize_without_ties(operator, operator.fresh(device), group, size)
    places = places_with_gradient(operator, inputs)
    if expected_or_none(operator, inputs) is None:
        raise NotApplicable("no reference")
    found = gradients_of(function_of(operator, inputs, places), leaves_of(inputs, places))
    right = gradients_of(function_of(operator, inputs, places, THEIRS), leaves_of(inputs, places))
    try:
        compare_gradients(operator, found, right, factor=20)
    except Wrong:  # the reference may be the less precise one
        precise = precise_if_possible(operator, inputs)
        right = gradients_of(function_of(operator, precise, places, THEIRS), leaves_of(precise, places))
        compare_gradients(operator, found, [x.to(y.dtype) for x, y in zip(right, found, strict=True)], factor=20)


@check(
    "look at the backward kernel's last, incomplete block", "9_kernels", because_of=("gradients", "odd_sizes", "empty")
)
def gradient_sizes(operator: Operator, device: str) -> Trials:
    """Is the gradient right for each size, 0 and 1 included?"""
    inputs = operator.fresh(device)
    need_gradient(operator, inputs)
    for group in groups_of(operator, inputs):
        for size in (0, 1, 2, 5, 8, 33, 129, 1023, 4099):
            if is_affordable(operator, inputs, group, 2 * size):
                yield trial(gradient_at_size_is_right, group=group, size=size)


def gradient_is_not_lost(operator: Operator, device: str, place: tuple) -> None:
    """If the result depends on the input, its gradient is there, or an error is raised."""
    inputs = operator.fresh(device)
    if operator.reference is not None:
        try:
            right = gradients_of(function_of(operator, inputs, [place], THEIRS), leaves_of(inputs, [place]))[0]
        except (Wrong, RuntimeError):
            raise NotApplicable("the reference has no gradient either") from None
        if not right.abs().sum() > 0:
            raise NotApplicable("the reference does not depend on it")
    x = leaves_of(inputs, [place])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = function_of(operator, inputs, [place])(*x)
        if not results:
            raise NotApplicable("no result is floating-point")
        message = f"input {place[0]} requires a gradient, which is lost: "
        is_default = bool(operator.written()) and not operator.gradients
        default = " (torch's default for an operator that writes)" * is_default
        is_recorded = any(y.requires_grad for y in results)
        require(is_recorded, f"{message}no result requires one, and there is no error{default}", is_default)
        nodes = " ".join(type(y.grad_fn).__name__ for y in results)
        found = torch.autograd.grad(sum(y.sum() for y in results if y.requires_grad), x, allow_unused=True)[0]
    is_warned = any("autograd kernel was not registered" in str(w.message) for w in caught)
    is_default = is_warned or "NotImplemented" in nodes
    default = " (torch's default for an operator without a gradient: only a warning)" * is_default
    require(found is not None, f"{message}it is None{default}", is_default)
    is_there = place[0] in operator.gradients or bool(found.any())
    require(is_there, f"{message}it is 0{default}", is_default)


@check(
    "register a gradient, or refuse inputs that require one",
    "4_gradients",
    opcheck=("test_autograd_registration",),
)
def lost_gradients(operator: Operator, device: str) -> Trials:
    """Does each input that requires a gradient get it, or an error?"""
    inputs = operator.fresh(device)
    for place in floating(inputs):
        if place not in operator.written():
            yield trial(gradient_is_not_lost, place=place)


def leaf_is_not_overwritten(operator: Operator, device: str, place: tuple) -> None:
    """torch's own in-place functions refuse a leaf that requires a gradient, and add(out=) any argument that does."""
    inputs = operator.fresh(device)
    get(inputs, place).requires_grad_()
    operator.call(*inputs)
    message = f"input {place[0]} requires a gradient, and is written without an error"
    raise Wrong(f"{message} (torch's default for an operator that writes)", is_torchs_default=True)


@check("refuse it while torch.is_grad_enabled()", "6_kinds", because_of=("lost_gradients",))
def written_leaves(operator: Operator, device: str) -> Trials:
    """Is a leaf that requires a gradient safe from being written?"""
    inputs = operator.fresh(device)
    places = [place for place in operator.written() if get(inputs, place).is_floating_point()]
    if not places:
        raise NotApplicable("writes none of its floating-point inputs")
    for place in places:
        yield trial(leaf_is_not_overwritten, place=place)


def gradient_of_some(operator: Operator, device: str, places: list, results: list) -> None:
    """Only some inputs require a gradient, and only some results are used: the others' gradients are None."""
    inputs = operator.fresh(device)
    everything = places_with_gradient(operator, inputs)
    leaves = leaves_of(inputs, everything)
    ys = function_of(operator, inputs, everything)(*leaves)
    used = [ys[k] for k in results if ys[k].requires_grad]
    if not used:
        raise NotApplicable("the result has no gradient")
    weights = [weight(y) for y in used]
    wanted = [leaves[everything.index(place)] for place in places]
    try:
        right = torch.autograd.grad(used, wanted, weights, allow_unused=True, retain_graph=True)
    except (AttributeError, TypeError) as error:
        if "NoneType" not in str(error):
            raise
        message = f"backward breaks on None if only results {results} are used"
        raise Unclear(f"{message}: {first_line(error)}") from None
    others = [weight(y) if k in results else torch.zeros_like(y) for k, y in enumerate(ys) if y.requires_grad]
    every = torch.autograd.grad([y for y in ys if y.requires_grad], wanted, others, allow_unused=True)
    some = leaves_of(inputs, places)
    ys = function_of(operator, inputs, places)(*some)
    used = [ys[k] for k in results if ys[k].requires_grad]
    require(bool(used), f"only inputs {places} require a gradient, and the result does not")
    found = torch.autograd.grad(used, some, weights[: len(used)], allow_unused=True)
    for place, x, y, z in zip(places, found, right, every, strict=True):
        filled = [torch.zeros_like(get(inputs, place)) if g is None else g for g in (x, y, z)]
        what = f"only inputs {places} require a gradient and only results {results} are used; gradient of {place[0]}"
        compare(operator, filled[:1], filled[1:2], factor=20, what=what)
        compare(operator, filled[:1], filled[2:], factor=20, what=what)


@check(
    "use ctx.needs_input_grad, and expect None for a result that is not used",
    "4_gradients",
    because_of=("gradients", "backward_twice"),
)
def gradient_subsets(operator: Operator, device: str) -> Trials:
    """Is the gradient right if only some inputs require one, or only some results are used?"""
    inputs = operator.fresh(device)
    places = need_gradient(operator, inputs)
    count = len(function_of(operator, inputs, [])())
    for some in [[place] for place in places] + [places]:
        for results in [[k] for k in range(count)] + [[*range(count)]] * (count > 1):
            yield trial(gradient_of_some, places=some, results=results)


ARRIVING = {  # gradients that are not contiguous, or not aligned
    "expanded from one element": lambda w: w.new_full((), 0.7).expand(w.shape),
    "expanded from one row": lambda w: w[:1].expand(w.shape) if w.dim() else w,
    "transposed": lambda w: w.permute([*range(w.dim())][::-1]).contiguous().permute([*range(w.dim())][::-1]),
    "with gaps": lambda w: torch.stack([w, w.new_full(w.shape, float("nan"))], -1)[..., 0],
    "not aligned": lambda w: torch.cat([w.new_zeros(1), w.flatten()])[1:].view(w.shape),
    "with the negative bit": lambda w: w if (x := view_of(w, "negative bit")) is None else x,
}


def arriving_gradient_is_read(operator: Operator, device: str, arriving: str) -> None:
    """sum().backward() sends an expanded gradient, a transposition a transposed one. Backward must leave it alone."""
    inputs = operator.fresh(device)
    places = places_with_gradient(operator, inputs)
    leaves = leaves_of(inputs, places)
    results = [y for y in function_of(operator, inputs, places)(*leaves) if y.requires_grad]
    weights = [ARRIVING[arriving](weight(y)) for y in results]
    plain = [x.clone(memory_format=torch.contiguous_format).resolve_neg() for x in weights]
    before = [x.clone() for x in plain]
    right = zeros_for_none(results, leaves, [x.clone() for x in plain], retain_graph=True)
    right = [x.clone() for x in right]
    found = zeros_for_none(results, leaves, weights)
    compare_gradients(operator, found, right, factor=20, what=f"the arriving gradient is {arriving}; gradient")
    require(same_bits(weights, before), "backward changes the gradient that arrives")


@check(
    "call contiguous() on the gradient that arrives, and do not write into it",
    "4_gradients",
    because_of=("gradients", "backward_twice"),
)
def arriving_gradients(operator: Operator, device: str) -> Trials:
    """Is a gradient read that is expanded or transposed, and left as it is?"""
    need_gradient(operator, operator.fresh(device))
    for arriving in ARRIVING:
        yield trial(arriving_gradient_is_read, arriving=arriving)


def second_backward_is_the_same(operator: Operator, device: str) -> None:
    """With retain_graph: what was saved, the results and the gradient that arrives must stay."""
    inputs = operator.fresh(device)
    places = places_with_gradient(operator, inputs)
    leaves = leaves_of(inputs, places)
    results = [y for y in function_of(operator, inputs, places)(*leaves) if y.requires_grad]
    weights = [weight(y) for y in results]
    kept = [x.detach().clone() for x in [*leaves, *results, *weights]]
    first = [
        None if x is None else x.clone()
        for x in torch.autograd.grad(results, leaves, weights, retain_graph=True, allow_unused=True)
    ]
    require(
        same_bits([x.detach() for x in [*leaves, *results]], kept[: len(leaves) + len(results)]),
        "backward changes an input or a result of the operator",
    )
    require(same_bits(weights, kept[-len(weights) :]), "backward changes the gradient that arrives")
    for x in first:
        if x is not None:
            x.mul_(1)
    again = torch.autograd.grad(results, leaves, weights, retain_graph=True, allow_unused=True)
    for x, y in zip(again, first, strict=True):
        if x is not None:
            compare(operator, [x], [y], what="second backward pass; gradient")
    torch.autograd.backward(results, weights)
    for x, y in zip(leaves, first, strict=True):
        if x.grad is not None and y is not None:
            compare(operator, [x.grad], [y], what="third backward pass; gradient")


@check("do not write into saved tensors, nor into the gradient that arrives", "4_gradients", because_of=("gradients",))
def backward_twice(operator: Operator, device: str) -> Trials:
    """Does a second backward pass give the same, and does backward leave all else as it is?"""
    need_gradient(operator, operator.fresh(device))
    yield trial(second_backward_is_the_same)


def overwritten_input_is_noticed(operator: Operator, device: str, place: tuple, of: tuple) -> None:
    """Written after the call, before the backward pass: an error, or the gradient of the old values."""
    inputs = operator.fresh(device)
    leaf = leaves_of(inputs, [of])
    results = [y for y in function_of(operator, inputs, [of])(*leaf) if y.requires_grad]
    weights = [weight(y) for y in results]
    right = torch.autograd.grad(results, leaf, weights, retain_graph=True, allow_unused=True)[0]
    if right is None:
        raise NotApplicable("no gradient")
    right = right.clone()
    with torch.no_grad():
        target = leaf[0] if place == of else get(inputs, place)
        target.copy_(target * 3 + 1 if target.is_floating_point() else other_values(operator, place, target, n=1))
    found = torch.autograd.grad(results, leaf, weights, allow_unused=True)[0]
    compare(
        operator,
        [found],
        [right],
        factor=20,
        what=f"input {place[0]} was overwritten after the call; gradient of {of[0]}",
    )


def overwritten_result_is_noticed(operator: Operator, device: str, of: tuple) -> None:
    inputs = operator.fresh(device)
    leaf = leaves_of(inputs, [of])
    results = [y for y in function_of(operator, inputs, [of])(*leaf) if y.requires_grad]
    weights = [weight(y) for y in results]
    right = torch.autograd.grad(results, leaf, weights, retain_graph=True, allow_unused=True)[0]
    if right is None:
        raise NotApplicable("no gradient")
    right = right.clone()
    with torch.no_grad():
        for y in results:
            y.mul_(3).add_(1)
    found = torch.autograd.grad(results, leaf, weights, allow_unused=True)[0]
    compare(operator, [found], [right], factor=20, what=f"the result was overwritten; gradient of input {of[0]}")


@check(
    "save tensors by ctx.save_for_backward, not as attributes of ctx",
    "4_gradients",
    because_of=(
        "backward_twice",
        "interleaved",
        "gradients",
    ),
)
def saved(operator: Operator, device: str) -> Trials:
    """Is a saved tensor that is overwritten before the backward pass noticed?"""
    inputs = operator.fresh(device)
    for of in need_gradient(operator, inputs):
        for place in places_of_tensors(inputs):
            if place not in operator.written():
                yield trial(overwritten_input_is_noticed, place=place, of=of)
        yield trial(overwritten_result_is_noticed, of=of)


def hooks_see_what_is_saved(operator: Operator, device: str) -> None:
    """Hooks move saved tensors elsewhere, as save_on_cpu and offloading do; here as float64 numbers."""
    inputs = operator.fresh(device)
    places = places_with_gradient(operator, inputs)
    function = function_of(operator, inputs, places)
    right = gradients_of(function, leaves_of(inputs, places))
    packed = []

    def pack(x: Tensor) -> tuple:
        packed.append(x)
        return x.device, x.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda pair: pair[1].to(pair[0])):
        found = gradients_of(function, leaves_of(inputs, places))
    compare(operator, found, right, factor=20, what="with saved_tensors_hooks; gradient")


def checkpointed_is_the_same(operator: Operator, device: str, use_reentrant: bool) -> None:
    """torch.utils.checkpoint calls the operator again in the backward pass."""
    inputs = operator.fresh(device)
    places = places_with_gradient(operator, inputs)
    function = function_of(operator, inputs, places)

    def checkpointed(*xs: Tensor) -> list[Tensor]:
        return list(checkpoint(lambda *ys: tuple(function(*(y * 1 for y in ys))), *xs, use_reentrant=use_reentrant))

    right = gradients_of(function, leaves_of(inputs, places))
    compare(
        operator, gradients_of(checkpointed, leaves_of(inputs, places)), right, factor=20, what="checkpointed; gradient"
    )


@check(
    "keep no state between forward and backward but ctx",
    "4_gradients",
    because_of=("backward_twice", "interleaved", "gradients", "repeated"),
)
def checkpoints(operator: Operator, device: str) -> Trials:
    """Is the gradient the same under torch.utils.checkpoint and with hooks on saved tensors?"""
    need_gradient(operator, operator.fresh(device))
    yield trial(hooks_see_what_is_saved)
    for use_reentrant in (False, True):
        yield trial(checkpointed_is_the_same, use_reentrant=use_reentrant)


def two_graphs_do_not_mix(operator: Operator, device: str) -> None:
    """Two calls, then both backward passes, the first call's first."""
    inputs = [operator.fresh(device, seed) for seed in (0, 1)]
    places = places_with_gradient(operator, inputs[0])
    functions = [function_of(operator, each, places) for each in inputs]
    for each in inputs:
        for place in places:
            get(each, place).mul_(1.5)
    right = [gradients_of(f, leaves_of(x, places)) for f, x in zip(functions, inputs, strict=True)]
    leaves = [leaves_of(each, places) for each in inputs]
    results = [[y for y in f(*x) if y.requires_grad] for f, x in zip(functions, leaves, strict=True)]
    for xs, ys, rights in zip(leaves, results, right, strict=True):
        found = zeros_for_none(ys, xs, [weight(y) for y in ys])
        compare(operator, found, rights, factor=20, what="after another call; gradient")


@check(
    "save what backward needs on ctx, not in a global",
    "4_gradients",
    because_of=("backward_twice", "gradients", "kept_results"),
)
def interleaved(operator: Operator, device: str) -> Trials:
    """Do two calls whose backward passes come later keep their own gradients?"""
    need_gradient(operator, operator.fresh(device))
    yield trial(two_graphs_do_not_mix)


def inference_is_right(operator: Operator, device: str, way: str) -> None:
    """The values are those of an ordinary call, and no result requires a gradient."""
    inputs = operator.fresh(device)
    right = [x.detach().clone() for x in operator.run(copies(inputs))]
    places = places_with_gradient(operator, inputs)
    written = operator.written()
    for place in places:
        if place not in written:
            get(inputs, place).requires_grad_()
    with torch.inference_mode() if way == "inference_mode" else torch.no_grad():
        found = operator.run(inputs)
    own = {get(inputs, place).untyped_storage().data_ptr() for place in places_of_tensors(inputs)}
    new = [x for x in found if x.untyped_storage().data_ptr() not in own]  # views require what their input does
    require(not any(x.requires_grad for x in new), f"a result requires a gradient under torch.{way}()")
    compare(operator, found, right, what=f"under torch.{way}(); result")
    if way == "inference_mode" and not written:
        require(all(x.is_inference() for x in new), "a result of torch.inference_mode() is no inference tensor")


def gradient_works_after_inference(operator: Operator, device: str) -> None:
    """A table that the first call makes and keeps may be an inference tensor, which a later call cannot save. So the
    check begins with this trial: each check has a process of its own."""
    inputs = operator.fresh(device)
    places = places_with_gradient(operator, inputs)
    with torch.inference_mode():
        operator.run(copies(inputs))
    try:
        gradients_of(function_of(operator, inputs, places), leaves_of(inputs, places))
    except RuntimeError as error:
        if "nference tensor" not in str(error):
            raise
        message = "after a call under torch.inference_mode(), one with gradients fails: it keeps a tensor of the first"
        raise Unclear(f"{message}; {first_line(error)}") from None


@check("allocate results by torch", "3_operator", because_of=("values", "kept_results", "aliases", "threads"))
def without_gradients(operator: Operator, device: str) -> Trials:
    """Is the result the same under no_grad and inference_mode, free of gradients, and does a later call have them?"""
    if places_with_gradient(operator, operator.fresh(device)):
        yield trial(gradient_works_after_inference)
    for way in ("no_grad", "inference_mode"):
        yield trial(inference_is_right, way=way)


def integer_result_has_no_gradient(operator: Operator, device: str) -> None:
    inputs = operator.fresh(device)
    places = places_with_gradient(operator, inputs)
    results = operator.run(filled(operator, inputs, places, leaves_of(inputs, places)))
    if all(y.is_floating_point() for y in results):
        raise NotApplicable("each result is floating-point")
    bad = [k for k, y in enumerate(results) if y.requires_grad and not (y.is_floating_point() or y.is_complex())]
    require(not bad, f"results {bad} are integers and require a gradient")


@check("call ctx.mark_non_differentiable for them", "4_gradients")
def integer_results(operator: Operator, device: str) -> Trials:
    """Do results of integers require no gradient?"""
    need_gradient(operator, operator.fresh(device))
    yield trial(integer_result_has_no_gradient)
