"""The referee finds each planted fault by the right check, and nothing in the twins."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import referee_plants_more  # noqa: F401  # adds to PLANTS
import torch._dynamo
from referee_plants import PLANTS

from lab.referee import judge
from lab.referee.judge import run_trials
from lab.referee.processes import fork, may_fork
from lab.referee.registry import CHECKS

pytestmark = pytest.mark.usefixtures("forks")

HERE = Path(__file__).parent
SLOW = ("wrong_beyond_65536", "unchecked_in_inference_mode", "effect", "leaks", "shared_scratch", "fake_dtype_half")
SLOW += (
    "last_of_a_maximum",
    "size_becomes_int",
    "fake_one_row",
    "gradient_of_many_is_zero",
    "incomplete_block",
)  # half a second or more
UNLIKE = (  # twins that are not the plain product
    *("drops_nan", "refuses_empty", "reads_as_float32", "sums_in_half", "index_unchecked", "negative_power", "overlap"),
    *("results_share_memory", "view_of_c", "effect", "second_is_zero", "wrong_batch", "autocast_wrong"),
    *("unchecked_in_inference_mode", "returns_its_input", "adds_to_scratch", "expects_both_gradients"),
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough) if name in SLOW else name for name in PLANTS]
)
def test_found_and_not_in_its_twin(name):
    """Both in one process, the twin first, as the other one may crash."""
    if torch.cuda.is_available() and not may_fork("cuda"):
        pytest.skip("this process has used CUDA, which does not survive a fork")
    plant = PLANTS[name]
    pair = (plant.twin, plant.broken)
    ended = fork(lambda say: [run_trials(each, "cpu", CHECKS[plant.check], say) for each in pair], 60)
    twin, *broken = [event for event in ended.events if "verdict" in event]
    assert twin["verdict"] in ("right", "refused", "not applicable"), twin
    found = broken[0]["verdict"] if broken else "crash"
    assert found in ("wrong", "crash", "error"), broken
    assert plant.verdict in ("any", found), broken


def end_of(program):
    """Run a reproducer in a fork, which has what it imports. Returns its last error, or how the process died."""
    for name in ("referee_plants", "referee_plants_more"):
        sys.modules[f"description_in_{name}"] = sys.modules[name]  # load() finds it there
    code = compile(program, "reproduce.py", "exec")
    ended = fork(lambda say: exec(code, {"__name__": "__main__", "__file__": "reproduce.py"}), 60)
    return ended.output.strip().splitlines()[-1] if "status" in ended.problem else ended.problem


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTS)
def test_reproducer_repeats_it(name):
    plant = PLANTS[name]
    (found,) = judge(plant.broken, checks=[plant.check])
    end = end_of(found.reproducer)
    assert ("died" if found.verdict == "crash" else "Wrong: ") in end or found.verdict == "error", end
    end = end_of(found.reproducer.replace(f"'plants::{name}'", f"'plants::{name}_twin'"))
    assert "died" not in end
    assert "Wrong: " not in end


@pytest.mark.thorough
def test_compiles_for_the_cpu_after_cuda_was_used(monkeypatch):
    """A fork cannot use CUDA then, and torch's compiler asks for the state of CUDA's random numbers where it is."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    plant = PLANTS["effect"]
    verdicts = [judge(each, checks=[plant.check])[0].verdict for each in (plant.broken, plant.twin)]
    assert verdicts == ["wrong", "not applicable"]


TRACING = ("dynamic_sizes", "traced_compiled", "compiled_derivatives", "exported", "huge")
TRACED = ("off_by_little", "random_rounding", "writes_past_the_end", "mutates_b", "version_stays", "second_is_zero")
TRACED += ("size_becomes_int", "changes_saved", "drops_tangents", "fake_strides", "loses_subclass")


def quick_checks():
    asked = [each for each, check in CHECKS.items() if not check.compiles and "cpu" in check.unasked_on]
    return [each for each in asked if each not in TRACING]


SAMPLE = {*TRACED[::2], *[*PLANTS][::4]}  # the others take minutes more


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SAMPLE else pytest.mark.slow) for name in PLANTS]
)
def test_is_one_finding(name):
    """What follows from the fault is no finding of its own. Some also pass those checks that take seconds."""
    plant = PLANTS[name]
    checks = None if name in TRACED else quick_checks()
    wrong = [finding for finding in judge(plant.broken, checks=checks, compile=False) if finding.is_wrong]
    assert [finding.check for finding in wrong] == [plant.check], wrong


@pytest.mark.thorough
@pytest.mark.parametrize("is_traced", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", UNLIKE)
def test_no_alarm(name, is_traced):
    checks = None if is_traced else quick_checks()
    wrong = [finding for finding in judge(PLANTS[name].twin, checks=checks, compile=False) if finding.is_wrong]
    assert not wrong, wrong


def test_torchs_own_defaults_are_named():
    (found,) = judge(PLANTS["drops_tangents"].broken, checks=["tangents"])
    assert found.is_torchs_default
    (found,) = judge(PLANTS["lost_gradient_b"].broken, checks=["lost_gradients"])
    assert not found.is_torchs_default


def test_each_check_has_a_plant(cuda_plants):
    """Or is a consequence of others, compiles, or needs more memory than tests have."""
    without = {"huge", "integer_results", "checkpoints", "transforms", "meta", "traced"}
    without |= {name for name, check in CHECKS.items() if "compiled" in name or check.compiles or "trac" in check.page}
    without |= {"dynamic_sizes", "exported", "series"}
    found = {plant.check for plant in [*PLANTS.values(), *cuda_plants.values()]}
    assert found | without >= set(CHECKS)


@pytest.fixture(scope="module")
def cuda_plants():
    from referee_gpu_plants import PLANTS

    return PLANTS


JUDGE_ALL = """
import json, sys
from referee_gpu_plants import PLANTS
from lab.referee import judge
from lab.referee.judge import run_trials
from lab.referee.processes import fork
found = {}
for name, plant in PLANTS.items():
    pair = [judge(each, "cuda", checks=[plant.check])[0] for each in (plant.broken, plant.twin)]
    found[name] = [[each.verdict, each.message] for each in pair]
    print(name, found[name], file=sys.stderr, flush=True)
print(json.dumps(found))
"""


@pytest.mark.thorough
def test_found_on_a_gpu(cuda, cuda_plants):
    """In one process that leaves CUDA alone, so that each check takes a fork."""
    done = subprocess.run(
        [sys.executable, "-c", JUDGE_ALL],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{HERE.parent}:{HERE}"},
    )
    assert not done.returncode, done.stderr
    verdicts = json.loads(done.stdout)
    missed = {}
    for name, (broken, twin) in verdicts.items():
        if broken[0] == "not applicable" and "two GPUs" in broken[1]:
            continue
        if broken[0] not in ("wrong", "crash", "error") or twin[0] not in ("right", "refused"):
            missed[name] = broken, twin
    assert not missed
