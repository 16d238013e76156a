"""Operator: the facts that the user states about an operator. Nothing here judges it."""

import contextlib
import functools
import importlib.util
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

Place = tuple[int, ...]  # where a tensor is among the inputs: (1,), or (1, 0) for the first of a list
DEFAULT_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}
DEFAULT_TOLERANCE |= {torch.complex128: 1e-8, torch.complex64: 1e-4}


files_being_loaded: list[str] = []


class SpecError(Exception):
    """The description of an operator is wrong, so the operator cannot be judged."""


def first_line(error: BaseException) -> str:
    """The kind of an error, and the first line of its words, with the next one if it only announces that."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = " ".join(lines[: 1 + lines[0].endswith(":")]) if lines else ""
    return f"{type(error).__name__}: {words}"[:200]


def get(inputs: Sequence, place: Place):
    for i in place:
        inputs = inputs[i]
    return inputs


def put(inputs: list, place: Place, value: object) -> None:
    get(inputs, place[:-1])[place[-1]] = value


def places_of_tensors(inputs: Sequence) -> list[Place]:
    found: list[Place] = []
    for i, x in enumerate(inputs):
        if isinstance(x, Tensor):
            found.append((i,))
        elif isinstance(x, (list, tuple)):
            found += [(i, j) for j, each in enumerate(x) if isinstance(each, Tensor)]
    return found


def copies(inputs: Sequence) -> list:
    """The same values in new tensors, which require no gradient. Lists are new lists."""
    return [
        tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, list(x) if type(x) is tuple else x)
        for x in inputs
    ]


def tensors_of(results: object) -> list[Tensor]:
    """The results of a call as a flat list of tensors. A number becomes a tensor, all else is left out."""
    leaves = [x for x in tree_leaves(results) if isinstance(x, (Tensor, int, float, complex))]
    return [x if isinstance(x, Tensor) else torch.tensor(x, device="cpu") for x in leaves]


def has_numbers(results: object) -> bool:
    """Whether a call has returned numbers, of which tensors_of() makes tensors."""
    return any(isinstance(x, (int, float, complex)) for x in tree_leaves(results))


class Spy(TorchDispatchMode):
    """Notes each call of an operator: the overload, its arguments, and what `watch` says of each call."""

    def __init__(self, packet, watch: Callable | None = None):
        super().__init__()
        self.packet, self.watch = packet, watch
        self.calls: list[tuple] = []
        self.others: list = []  # overloads of other operators than torch's own

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.packet is None or function._overloadpacket is not self.packet:
            self.others += [function] * (function.namespace not in ("aten", "prim", "prims"))
            return function(*args, **kwargs)
        self.calls.append((function, args, kwargs))
        return self.watch(function, args, kwargs) if self.watch else function(*args, **kwargs)


@dataclass(eq=False)
class Operator:
    """An operator, and the facts that no tool can find out.

    name: "namespace::name" or "namespace::name.overload"; for a plain function, any name.
    call: computes with the operator. Default: the operator itself.
    inputs(device): the arguments of call: tensors on that device, lists of tensors, numbers, strings, None. Small ones:
        the referee makes larger ones, other dtypes and other strides from them.
    reference: the same by torch's own functions: takes what call takes. Where call writes into an input, it may write,
        too, or return the new values. Without it only the operator's agreement with itself is judged.
    gradients: the numbers of the inputs that have a gradient.
    sizes: sizes that may change, each as all the (input, dimension) that change together. Default: where all inputs
        are floating-point, dimensions of equal size are tried together.
    tolerance: for a dtype, the error allowed for an element, relative to the larger of the element and the root mean
        square of all elements. Defaults: float64 1e-8, float32 1e-4, float16 5e-3, bfloat16 4e-2.
    bounds: for an input, the least and the largest value that is allowed in it; all others must be refused.
    wrong: for words that the error has to contain (a regular expression), what to change: {input: new value}, where a
        function gets the input and returns the new value. Each must be refused in every way of calling.
    title: how this operator is called in the report, if a file has the same operator twice. Default: its name.
    """

    name: str
    call: Callable = None  # type: ignore[assignment]  # __post_init__ sets it
    inputs: Callable[[str], Sequence] = None  # type: ignore[assignment]  # __post_init__ refuses None
    reference: Callable | None = None
    gradients: Sequence[int] = ()
    sizes: Mapping[str, Sequence[tuple[int, int]]] | None = None
    tolerance: Mapping[torch.dtype, float] = field(default_factory=dict)
    bounds: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    wrong: Mapping[str, Mapping[int, object]] = field(default_factory=dict)
    title: str = ""

    def __post_init__(self):
        self.title = self.title or self.name
        self.learnt: dict[str, list[Place]] = {}
        self.groups: dict[str, list[tuple[int, int]]] | None = None  # that trial.groups_of() has found
        self.call_seconds: dict[tuple, float] = {}  # for a size
        self.say: Callable[[dict], None] = lambda event: None  # tells another process what runs here
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_name != "<module>":
            frame = frame.f_back
        self._home = frame.f_globals if frame else {}
        if not callable(self.inputs):
            raise SpecError(f"{self.title}: inputs is {self.inputs!r}, expected a function: lambda device: (x, 2.0)")
        if self.call is None:
            if self.packet is None:
                raise SpecError(f"{self.title}: torch.ops has no such operator, and there is no call=")
            self.call = self.packet
        for name, value in (("call", self.call), ("reference", self.reference)):
            if value is not None and not callable(value):
                raise SpecError(f"{self.title}: {name} is {value!r}, expected a function")
        dicts = dict.fromkeys(("sizes", "tolerance", "bounds", "wrong"), Mapping)
        for name, right in {"gradients": Sequence, **dicts}.items():
            value = getattr(self, name)
            if not isinstance(value, right) and (name, value) != ("sizes", None):
                example = "the numbers of inputs, (0, 1)" if right is Sequence else "a dict"
                raise SpecError(f"{self.title}: {name} is {value!r}, expected {example}")
        for words in self.wrong:
            try:
                re.compile(words)
            except re.error as error:
                raise SpecError(f"{self.title}: wrong has {words!r}, no regular expression: {error}") from None
        if strange := [x for x in self.tolerance if not isinstance(x, torch.dtype)]:
            raise SpecError(f"{self.title}: tolerance has {strange[0]!r}, expected a dtype such as torch.float32")

    @functools.cached_property
    def packet(self):
        """torch.ops.NAMESPACE.NAME, or None if the dispatcher does not know it."""
        namespace, _, name = self.name.replace("::", ".").partition(".")
        return getattr(getattr(torch.ops, namespace), name.split(".")[0], None) if name else None

    @functools.cached_property
    def is_random(self) -> bool:
        """Whether its author says so, by a tag of the overload that is named, or of any."""
        named = self.name.replace("::", ".").split(".")[2:]
        overloads = [getattr(self.packet, name) for name in named or self.packet.overloads()] if self.packet else []
        return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)

    @contextlib.contextmanager
    def _random_numbers(self) -> Iterator[None]:
        """The same ones for each call of an operator that takes some, and for its reference."""
        if not self.is_random:
            yield
            return
        with torch.random.fork_rng():
            torch.manual_seed(0)
            yield

    @property
    def file(self) -> str | None:
        """The file that describes it, if load() can find it there."""
        return self._home.get("__file__") if any(each is self for each in operators_in(self._home)) else None

    def tolerance_of(self, dtype: torch.dtype) -> float:
        return self.tolerance.get(dtype, DEFAULT_TOLERANCE.get(dtype, 0.0))

    def fresh(self, device: str, seed: int = 0) -> list:
        """New inputs, the same for the same seed."""
        if not self.learnt:
            self.learnt = {"written": [], "returned": [], "by_reference": [], "returned_by_reference": []}
            self._learn(device)
        torch.manual_seed(seed)
        return copies(self.inputs(device))

    def run(self, inputs: Sequence) -> list[Tensor]:
        """Call the operator. Returns its results, then the inputs that it has written and not returned."""
        with self._random_numbers():
            returned = tensors_of(self.call(*inputs))
        return returned + self._others(inputs, "written", "returned")

    def expected(self, inputs: Sequence) -> list[Tensor]:
        """The results that run() should have, by the reference. The inputs are written if the reference writes."""
        assert self.reference is not None
        self.say({"reference": "runs"})
        try:
            with self._random_numbers():
                returned = tensors_of(self.reference(*inputs))
        finally:
            self.say({"reference": "has ended"})
        return returned + self._others(inputs, "by_reference", "returned_by_reference")

    def written(self) -> list[Place]:
        """The places of the inputs that a call writes: by the operator's schema and by what the reference does."""
        return [tuple(place) for place in self.learnt["written"]]

    def _others(self, inputs: Sequence, written: str, returned: str) -> list[Tensor]:
        return [get(inputs, place) for place in self.learnt[written] if place not in self.learnt[returned]]

    def _learn(self, device: str) -> None:
        """Which inputs are written, and which of them are returned, by a call and by the reference."""
        reference = self.reference
        inputs = self._must_work("inputs(device)", lambda: self.fresh(device))
        self._check_numbers(inputs)
        places = places_of_tensors(inputs)
        addresses = {get(inputs, place).untyped_storage().data_ptr(): place for place in places}
        found = self._must_work("call(*inputs)", lambda: self._written_addresses(inputs))
        written = {addresses[address] for address in found if address in addresses}
        by_reference, returned_by_reference = set(), []
        if reference is not None:
            inputs = self.fresh(device)
            versions = {place: get(inputs, place)._version for place in places}
            results = self._must_work("reference(*inputs)", lambda: tensors_of(reference(*inputs)))
            by_reference = {place for place in places if get(inputs, place)._version != versions[place]}
            returned_by_reference = [p for p in places if any(get(inputs, p) is x for x in results)]
        inputs = self.fresh(device)
        results = tensors_of(self.call(*inputs))
        self.learnt = {
            "written": sorted(written | by_reference),
            "returned": [place for place in places if any(get(inputs, place) is x for x in results)],
            "by_reference": sorted(by_reference),
            "returned_by_reference": returned_by_reference,
        }

    def _check_numbers(self, inputs: Sequence) -> None:
        """SpecError if the description names an input, or a dimension of one, that is not there."""
        named = [("gradients", i) for i in self.gradients] + [("bounds", i) for i in self.bounds]
        named += [("wrong", i) for changes in self.wrong.values() for i in changes]
        named += [("sizes", i) for places in (self.sizes or {}).values() for i, _ in places]
        for what, i in named:
            if not isinstance(i, int) or not 0 <= i < len(inputs):
                raise SpecError(f"{self.title}: {what} names input {i!r}; there are {len(inputs)}, from 0 on")
        for i in self.gradients:
            tensors = [x for x in tree_leaves(inputs[i]) if isinstance(x, Tensor)]
            if not any(x.is_floating_point() or x.is_complex() for x in tensors):
                raise SpecError(f"{self.title}: gradients names input {i}, which has no floating-point tensor")
        for i, dim in (place for places in (self.sizes or {}).values() for place in places):
            found = [x.dim() for x in tree_leaves(inputs[i]) if isinstance(x, Tensor)]
            if not found or not -min(found) <= dim < min(found):
                what = f"a tensor of {min(found)} dimensions" if found else "no tensor"
                raise SpecError(f"{self.title}: sizes names dimension {dim} of input {i}, which is {what}")

    def _must_work(self, what: str, function: Callable):
        try:
            return function()
        except Exception as error:
            raise SpecError(f"{self.title}: {what} fails: {first_line(error)}") from error

    def _written_addresses(self, inputs: list) -> list[int]:
        found = []
        for function, args, kwargs in self.calls(inputs):
            for argument, value in bound_arguments(function, args, kwargs):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    found += [x.untyped_storage().data_ptr() for x in tree_leaves(value) if isinstance(x, Tensor)]
        return found

    def calls(self, inputs: Sequence) -> list[tuple]:
        """The calls of the operator itself that call(*inputs) makes: (overload, args, kwargs)."""
        with Spy(self.packet) as spy:
            self.call(*inputs)
        return spy.calls


def bound_arguments(function, args: Sequence, kwargs: Mapping) -> list[tuple]:
    """Pairs of an argument of the schema and its value."""
    arguments = function._schema.arguments
    pairs = list(zip(arguments, args, strict=False))
    return pairs + [(each, kwargs[each.name]) for each in arguments[len(args) :] if each.name in kwargs]


def operators_in(names: Mapping[str, object]) -> list[Operator]:
    """Those among the global names of a file, also in lists, tuples and dicts."""
    values = [x for value in list(names.values()) if isinstance(value, (list, tuple, dict)) for x in tree_leaves(value)]
    return [x for x in [*names.values(), *values] if isinstance(x, Operator)]


def _place_in(path: Path, error: Exception) -> str:
    """The file, with the line of it that an error comes from."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)]
    lines += [error.lineno] if isinstance(error, SyntaxError) and error.filename == str(path) and error.lineno else []
    return f"{path}:{lines[-1]}" if lines else str(path)


def load(file: str | Path, title: str | None = None) -> Operator | list[Operator]:
    """Run a Python file that describes operators. Returns all of them, or the one with this title. SpecError if there
    is none. They may be global names of the file, or lie in global lists and dicts."""
    path = Path(file).resolve()
    if not path.is_file():
        raise SpecError(f"{file}: no such file")
    name = f"description_in_{path.stem}"
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last: the file may be called as what it describes
    if getattr(sys.modules.get(name), "__file__", None) != str(path):
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise SpecError(f"{file}: no Python file; expected a name that ends in .py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        files_being_loaded.append(str(path))
        try:
            spec.loader.exec_module(module)
        except SpecError:
            sys.modules.pop(name)
            raise
        except Exception as error:
            sys.modules.pop(name)
            raise SpecError(f"{_place_in(path, error)}: {first_line(error)}") from error
        finally:
            files_being_loaded.pop()
    found: dict[str, Operator] = {}
    for each in operators_in(vars(sys.modules[name])):
        if found.setdefault(each.title, each) is not each:
            raise SpecError(f"{file}: two operators are called {each.title!r}; give one a title=")
    if not found:
        raise SpecError(f"{file}: describes no operator; expected a global name such as `spec = Operator(...)`")
    if title is None:
        return list(found.values())
    if title not in found:
        raise SpecError(f"{file}: has no operator called {title!r}; it has {', '.join(found)}")
    return found[title]
