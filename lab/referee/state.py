"""Process state: settings, random numbers, threads, and what an error leaves behind."""

import ctypes
import locale
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable

import torch

from .gradients import function_of, gradients_of, leaves_of
from .operator import Operator, copies, get, places_of_tensors, put
from .registry import Trials, check, trial
from .trial import NotApplicable, Wrong, compare, floating, places_with_gradient, require, same_bits

SETTINGS: dict[str, Callable] = {  # each returns something that can be compared
    "grad mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "default dtype": torch.get_default_dtype,
    "default device": torch.get_default_device,
    "number of threads": torch.get_num_threads,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "filling of new memory": lambda: torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    "matmul precision": torch.get_float32_matmul_precision,
    "cudnn": lambda: (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
    "TF32": lambda: (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
    "autocast": lambda: (
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.is_autocast_cache_enabled(),
    ),
    "anomaly mode": torch.is_anomaly_enabled,
    # Bits: where denormal numbers are flushed, 1e-310 == 0 is true.
    "denormal numbers": lambda: bool((torch.tensor([1e-310], dtype=torch.float64) * 1).view(torch.int64)),
    "rounding": lambda: ctypes.CDLL("libm.so.6").fegetround(),
    "print options": lambda: repr(torch.tensor([1.23456789])),
    "folder": os.getcwd,
    "environment": lambda: dict(os.environ),
    "locale": lambda: locale.setlocale(locale.LC_ALL),
    "warning filters": lambda: len(warnings.filters),
    "signal handlers": lambda: [signal.getsignal(x) for x in (signal.SIGINT, signal.SIGTERM, signal.SIGSEGV)],
    "Python's random numbers": random.getstate,
    "torch's random numbers": lambda: torch.get_rng_state().tolist(),
    "torch's functions": lambda: [
        torch.empty,
        torch.allclose,
        torch.equal,
        torch.Tensor.__eq__,
        torch.cuda.synchronize,
    ],
    "clocks": lambda: [time.perf_counter, time.time, torch.cuda.Event, torch.cuda.Event.elapsed_time],
}
CHANGED_BY_IMPORTS = ("environment", "locale", "warning filters", "signal handlers", "torch's functions", "clocks")
ON_CUDA: dict[str, Callable] = {
    "current device": torch.cuda.current_device,
    "current stream": lambda: torch.cuda.current_stream().cuda_stream,
    "CUDA's random numbers": lambda: torch.cuda.get_rng_state().tolist(),
}


def draw_random_numbers(device: str) -> None:
    """One of each generator: if each call sets the same seed, the states before and after it would else be the same."""
    random.random()
    torch.rand(1)
    if device.startswith("cuda"):
        torch.rand(1, device=device)


def snapshot(device: str) -> dict:
    return {name: read() for name, read in (SETTINGS | (ON_CUDA if device.startswith("cuda") else {})).items()}


def require_same(before: dict, after: dict, when: str) -> None:
    changed = [name for name in before if before[name] != after[name]]
    require(not changed, f"{when} changes {', '.join(changed)}")


def settings_stay(operator: Operator, device: str, has_backward: bool) -> None:
    inputs = operator.fresh(device)
    places = places_with_gradient(operator, inputs)
    if has_backward and not places:
        raise NotApplicable("no input has a gradient")
    warnings.filterwarnings("ignore")
    for k in range(2):
        draw_random_numbers(device)
        before = snapshot(device)
        if has_backward:
            gradients_of(function_of(operator, inputs, places), leaves_of(inputs, places))
        else:
            operator.run(copies(inputs))
        after = snapshot(device)
        if k == 0:  # an import may change these
            before |= {name: after[name] for name in CHANGED_BY_IMPORTS}
        require_same(before, after, "a backward pass" if has_backward else "a call")


def settings_survive_an_error(operator: Operator, device: str, place: tuple, kind: str) -> None:
    """A call that is refused leaves all settings as they were, and the next call is right."""
    inputs = operator.fresh(device)
    right = [x.clone() for x in operator.run(copies(inputs))]
    bad = copies(inputs)
    x = get(bad, place)
    put(bad, place, {"dtype": x.to(torch.complex64), "None": None, "shape": x[None, None, None]}[kind])
    before = snapshot(device)
    try:
        operator.run(bad)
    except Exception:
        require_same(before, snapshot(device), f"a call that is refused (input {place[0]}, {kind})")
        compare(operator, operator.run(copies(inputs)), right, what="after a call that was refused; result")
        return
    raise NotApplicable("the call is not refused")


@check(
    "change no setting, or set it back in a guard (RAII, try/finally)",
    "3_operator",
    because_of=("leaks", "random_numbers"),
)
def settings(operator: Operator, device: str) -> Trials:
    """Are all settings of the process as before, after a call, a backward pass and an error?"""
    for has_backward in (False, True):
        yield trial(settings_stay, has_backward=has_backward)
    for place in places_of_tensors(operator.fresh(device)):
        for kind in ("dtype", "None", "shape"):
            yield trial(settings_survive_an_error, place=place, kind=kind)


def random_numbers_are_left(operator: Operator, device: str) -> None:
    inputs = operator.fresh(device)
    operator.run(copies(inputs))

    def state() -> list:
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if device.startswith("cuda") else [])]

    draw_random_numbers(device)
    before, by_python = state(), random.getstate()
    operator.run(copies(inputs))
    is_same = same_bits(state(), before) and random.getstate() == by_python
    require(is_same, "a call takes random numbers, or sets the seed; results of other code change")


@check("take no random numbers, or tag the operator nondeterministic_seeded", "6_kinds", of_random=False)
def random_numbers(operator: Operator, device: str) -> Trials:
    """Are the generators of random numbers left alone?"""
    yield trial(random_numbers_are_left)


class DefaultDtype:
    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype

    def __enter__(self):
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *_):
        torch.set_default_dtype(self.before)


class Threads:
    def __init__(self, count: int):
        self.count = count

    def __enter__(self):
        self.before = torch.get_num_threads()
        torch.set_num_threads(self.count)

    def __exit__(self, *_):
        torch.set_num_threads(self.before)


class Deterministic:
    def __enter__(self):
        torch.use_deterministic_algorithms(True, warn_only=True)

    def __exit__(self, *_):
        torch.use_deterministic_algorithms(False)


CALLERS: dict[str, Callable] = {
    "default dtype float64": lambda: DefaultDtype(torch.float64),
    "default dtype float16": lambda: DefaultDtype(torch.float16),
    "default device meta": lambda: torch.device("meta"),
    "one thread": lambda: Threads(1),
    "deterministic algorithms": Deterministic,
    "anomaly detection": lambda: torch.autograd.detect_anomaly(check_nan=False),
}


def setting_does_not_matter(operator: Operator, device: str, setting: str) -> None:
    inputs = operator.fresh(device)
    right = [x.clone() for x in operator.run(copies(inputs))]
    places = places_with_gradient(operator, inputs)
    function = function_of(operator, inputs, places)
    gradients = gradients_of(function, leaves_of(inputs, places)) if places else []
    with CALLERS[setting]():
        found = operator.run(copies(inputs))
        found += gradients_of(function, leaves_of(inputs, places)) if places and "meta" not in setting else []
    right += gradients if "meta" not in setting else []
    compare(operator, found, right, what=f"with {setting}; result (then gradients)")


@check(
    "name dtype and device for each tensor that you make",
    "5_your_own",
    because_of=("backward_twice", "interleaved", "values", "gradients", "repeated", "uninitialized", "unwritten"),
)
def callers_settings(operator: Operator, device: str) -> Trials:
    """Is the result the same with other settings: default dtype and device, threads, deterministic algorithms?"""
    for setting in CALLERS:
        yield trial(setting_does_not_matter, setting=setting)


def threads_do_not_mix(operator: Operator, device: str, has_backward: bool) -> None:
    """Four threads, each with numbers of its own, call again and again."""
    inputs = []
    for k in range(4):
        inputs.append(operator.fresh(device))
        for place in floating(inputs[k]):
            get(inputs[k], place).mul_(1 + k)
    places = places_with_gradient(operator, inputs[0])
    if has_backward and not places:
        raise NotApplicable("no input has a gradient")

    def call(k: int) -> list:
        if has_backward:
            return gradients_of(function_of(operator, inputs[k], places), leaves_of(inputs[k], places))
        return operator.run(copies(inputs[k]))

    right = [[x.clone() for x in call(k)] for k in range(4)]
    problems: list[str] = []
    end = time.monotonic() + 0.6

    def work(k: int) -> None:
        try:
            for _ in range(200):
                compare(operator, call(k), right[k], what="four threads at once; result")
                if time.monotonic() > end or problems:
                    return
        except Wrong as error:
            problems.append(str(error))
        except Exception as error:
            problems.append(f"in a thread: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    require(not problems, problems[0] if problems else "")


@check(
    "keep no buffer, and no state, that two calls share",
    "6_kinds",
    because_of=("backward_twice", "interleaved", "values", "kept_results", "repeated", "leaks"),
    of_random=False,
)
def threads(operator: Operator, device: str) -> Trials:
    """Is it right in several threads at once, with backward passes, too?"""
    for has_backward in (False, True):
        yield trial(threads_do_not_mix, has_backward=has_backward)
