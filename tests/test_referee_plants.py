"""The referee finds each planted fault by the right check, and nothing in the twins."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch._dynamo
from referee_plants import PLANTS

from lab.referee import judge
from lab.referee.judge import run_trials
from lab.referee.processes import fork, may_fork
from lab.referee.registry import CHECKS

HERE = Path(__file__).parent
SHORT = ("drops_nan",)  # whose reproducers the short run executes
UNLIKE = (  # twins that are not the plain product
    *("drops_nan", "refuses_empty", "reads_as_float32", "sums_in_half", "index_unchecked", "negative_power", "overlap"),
    *("results_share_memory", "view_of_c", "effect", "second_is_zero", "wrong_batch", "autocast_wrong"),
    *("unchecked_in_inference_mode", "returns_its_input", "adds_to_scratch"),
)


@pytest.mark.parametrize("name", PLANTS)
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


@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.thorough) for name in PLANTS]
)
def test_reproducer_repeats_it(name, run):
    plant = PLANTS[name]
    (found,) = judge(plant.broken, checks=[plant.check])
    if found.verdict == "crash":
        return run("-c", found.reproducer, status=-11 if "SIGSEGV" in found.message else -6)
    last = run("-c", found.reproducer, status=None).stderr.strip().splitlines()[-1]
    assert "Wrong: " in last or found.verdict == "error", last
    of_twin = found.reproducer.replace(f"'plants::{name}'", f"'plants::{name}_twin'")
    assert "Wrong: " not in run("-c", of_twin, status=None).stderr
    return None


@pytest.mark.thorough
@pytest.mark.parametrize("name", PLANTS)
def test_is_one_finding(name):
    """All checks: what follows from the fault is no finding of its own."""
    plant = PLANTS[name]
    wrong = [finding for finding in judge(plant.broken, compile=False) if finding.is_wrong]
    assert [finding.check for finding in wrong] == [plant.check], wrong


@pytest.mark.thorough
@pytest.mark.parametrize("name", UNLIKE)
def test_no_alarm(name):
    wrong = [finding for finding in judge(PLANTS[name].twin, compile=False) if finding.is_wrong]
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
