"""examples/practice: graders can be trusted, and practice.py loses nothing.

For each exercise the skeleton fails, the solution passes, and wrong answers fail with the words that their second line
promises. The short run has the wrong answers of a few exercises, --all has all of them.
"""

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PRACTICE = ROOT / "examples" / "practice"
sys.path.insert(0, str(PRACTICE))

import exercises  # noqa: E402
import grading  # noqa: E402
import on_gpu  # noqa: E402
import progress  # noqa: E402
import refereed  # noqa: E402

from lab.referee.processes import autograd_survives_a_fork  # noqa: E402

EXERCISES = exercises.find_all()
KERNELS = [each for each in EXERCISES if each.skeleton.suffix == ".cu"]
KINDS = ("Fast, but wrong", "Right, but slow", "Right for one size", "A cheat")
ON_CPU = [each for each in EXERCISES if not each.needs_gpu]
SHORT = {2, 25, 36, 37, 38}  # their wrong answers are in the short run
pytestmark = pytest.mark.usefixtures("emulator_cache")
HEAD = re.compile(r"\A# (?P<kind>[^:]+): (?P<why>.+?)\n# check says: (?P<says>.+?)\n(?!# )", re.DOTALL)


def name(value):
    return getattr(value, "name", str(value))


def head(answer):
    """kind, why, says: what the first lines of a wrong answer say."""
    found = HEAD.match(re.sub("^//", "#", answer.read_text(), flags=re.MULTILINE))
    assert found, f"{answer} begins with `// KIND: why`, then `// check says: WORDS` (in Python with #)"
    return {key: " ".join(text.replace("\n#", " ").split()) for key, text in found.groupdict().items()}


LATER = [pytest.mark.thorough, pytest.mark.anywhere]
WRONG = [
    pytest.param(each, answer, marks=[] if each.number in SHORT else LATER, id=f"{each.name}-{answer.stem}")
    for each in ON_CPU
    for answer in each.wrong
]


def grade(exercise, answer, seed=1):
    """In this process, of which the referee makes forks for an operator."""
    if exercise.part == exercises.PARTS["Operator"] and not autograd_survives_a_fork():
        pytest.skip("this process has started autograd's threads, which do not survive a fork")
    return exercises.grade(exercise, answer, seed)


def fails(exercise, answer):
    with pytest.raises(grading.NotYet) as found:
        grade(exercise, answer)
    assert found.value.what
    assert found.value.think
    return str(found.value)


FIRST, SECOND = ON_CPU[: len(ON_CPU) // 2], ON_CPU[len(ON_CPU) // 2 :]


def wrong(some):
    return pytest.mark.parametrize(("exercise", "answer"), [each for each in WRONG if each.values[0] in some])


@pytest.mark.anywhere
class TestFirstHalf:
    """Two classes, so that two workers share them."""

    @pytest.mark.parametrize("exercise", FIRST, ids=name)
    def test_solution_passes_and_skeleton_fails(self, exercise):
        assert grade(exercise, exercise.solution)
        fails(exercise, exercise.skeleton)

    @wrong(FIRST)
    def test_wrong_answer_fails(self, exercise, answer):
        assert head(answer)["says"] in fails(exercise, answer)


@pytest.mark.anywhere
class TestSecondHalf:
    @pytest.mark.parametrize("exercise", SECOND, ids=name)
    def test_solution_passes_and_skeleton_fails(self, exercise):
        assert grade(exercise, exercise.solution)
        fails(exercise, exercise.skeleton)

    @wrong(SECOND)
    def test_wrong_answer_fails(self, exercise, answer):
        assert head(answer)["says"] in fails(exercise, answer)


@pytest.mark.thorough
@pytest.mark.anywhere
@pytest.mark.parametrize("exercise", [*KERNELS, EXERCISES[37]], ids=name)
def test_other_inputs(exercise):
    """A right answer passes with any random numbers."""
    for seed in (2, 3, 4):
        grade(exercise, exercise.solution, seed)


def test_wrong_answers_are_of_different_kinds():
    for exercise in EXERCISES:
        kinds = {head(answer)["kind"] for answer in exercise.wrong}
        assert kinds <= {*KINDS}, exercise.name
        assert len(kinds) >= 3, exercise.name


def test_every_exercise_is_complete():
    """Numbers without a gap, a level, three hints, a launcher in the skeleton, links that lead somewhere."""
    assert [each.number for each in EXERCISES] == [*range(1, len(EXERCISES) + 1)]
    for exercise in EXERCISES:
        assert exercise.title
        assert exercise.level in (1, 2, 3)
        assert len(exercise.hints) == 3
        assert all(exercise.hints)
        for text in (exercise.task, exercise.chinese_task):
            for link in re.findall(r"\]\(([^)#]+)", text):
                assert (exercise.folder / link).exists(), (exercise.name, link)
    for exercise in KERNELS:
        launcher = exercises.load_grader(exercise).LAUNCHER
        assert f"{launcher}(" in exercise.skeleton.read_text()
    assert [each.number for each in EXERCISES if each.chinese_task] == [1, 2, 3, 4, 5]


def test_the_page_lists_every_exercise():
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (\d) \|", (ROOT / "docs" / "practice.md").read_text(), re.MULTILINE)
    assert rows == [(str(each.number), each.title, str(each.level)) for each in EXERCISES]


def changed(exercise, tmp_path, *edits):
    """A solution with edits, in a file of its own."""
    text = exercise.solution.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / f"answer{exercise.solution.suffix}"
    path.write_text(text)
    return path


ALSO_RIGHT = {
    "a swizzle, no padding": (
        "transpose",
        ("tile[32][33]", "tile[32][32]"),
        ("tile[i][j] =", "tile[i][j ^ i] ="),
        ("= tile[j][i]", "= tile[j][i ^ j]"),
    ),
    "a histogram for each block": (
        "histogram",
        (
            "  const int64_t stride",
            "  __shared__ int own[256];\n  own[threadIdx.x] = 0;\n  __syncthreads();\n  const int64_t stride",
        ),
        (
            "atomicAdd(&counts[x[i]], 1);\n",
            "atomicAdd(&own[x[i]], 1);\n  __syncthreads();\n  atomicAdd(&counts[threadIdx.x], own[threadIdx.x]);\n",
        ),
    ),
    "two arrays, one barrier each": (
        "block_sum",
        ("sum_over_block(float x) {\n  __shared__ float sums[kWarps];", "sum_over_block(float x, float* sums) {"),
        ("total += sums[warp];\n  __syncthreads();", "total += sums[warp];"),
        ("  const float* row", "  __shared__ float first[kWarps], second[kWarps];\n  const float* row"),
        ("sum_over_block(sum)", "sum_over_block(sum, first)"),
        ("sum_over_block(squares)", "sum_over_block(squares, second)"),
    ),
    "scan in shared memory, read, wait, write": (
        "scan",
        ("totals[kWarps]", "sums[kThreads]"),
        (
            "  int sum = scan_over_warp(i < width ? x[start + i] : 0);\n"
            "  if (threadIdx.x % 32 == 31) totals[warp] = sum;\n",
            "  int sum = sums[i] = i < width ? x[start + i] : 0;\n",
        ),
        (
            "  for (int before = 0; before < warp; ++before) sum += totals[before];\n",
            "  for (int distance = 1; distance < kThreads; distance *= 2) {\n"
            "    if (i >= distance) sum += sums[i - distance];\n    __syncthreads();\n"
            "    sums[i] = sum;\n    __syncthreads();\n  }\n",
        ),
        (", warp = threadIdx.x / 32;", ";"),
    ),
    "zeros first, and a barrier": (
        "any_block_size",
        (
            "  if (lane == 0) sums[warp] = sum;",
            "  if (warp == 0) sums[lane] = 0;\n  __syncthreads();\n  if (lane == 0) sums[warp] = sum;",
        ),
        ("lane < blockDim.x / 32 ? sums[lane] : 0", "sums[lane]"),
    ),
    "the whole block waits": ("tree_in_a_warp", ("__syncwarp()", "__syncthreads()")),
    "shuffles": (
        "tree_in_a_warp",
        ("  float* mine = places[warp];\n  mine[lane] = sum;\n", ""),
        (
            "    __syncwarp();\n    if (lane < distance) mine[lane] += mine[lane + distance];\n",
            "    sum += __shfl_down_sync(0xffffffff, sum, distance);\n",
        ),
        ("= mine[0]", "= sum"),
        ("  __shared__ float places[kWarps][32];\n", ""),
    ),
    "the barrier before the copy": (
        "permuted_chunks",
        ("chunk[from];\n    __syncthreads();", "chunk[from];"),
        ("    chunk[threadIdx.x] =", "    __syncthreads();\n    chunk[threadIdx.x] ="),
    ),
    "the headers of ATen": (
        "port",
        (
            "#include <torch/csrc/stable/library.h>\n#include <torch/csrc/stable/ops.h>\n"
            "#include <torch/csrc/stable/tensor.h>\n",
            "#include <ATen/ATen.h>\n#include <torch/library.h>\n",
        ),
        ("torch::stable", "at"),
        ("torch::headeronly", "at"),
        ("STABLE_TORCH_LIBRARY", "TORCH_LIBRARY"),
        ("TORCH_BOX(&running_sum)", "&running_sum"),
    ),
    "a 64-bit width": (
        "flat_positions",
        ("int n, int width", "int n, int64_t width"),
        ("int64_t(rows[i])", "rows[i]"),
        ("int(width)", "width"),
    ),
}


@pytest.mark.thorough
@pytest.mark.anywhere
@pytest.mark.parametrize("way", ALSO_RIGHT)
def test_other_right_answers_pass(way, tmp_path):
    word, *edits = ALSO_RIGHT[way]
    exercise = exercises.find(word)
    assert grade(exercise, changed(exercise, tmp_path, *edits))


@pytest.mark.anywhere
@pytest.mark.thorough
class TestMessages:
    """What a grader says of mistakes that no exercise has among its wrong answers."""

    @pytest.mark.parametrize(
        ("edit", "words"),
        [
            (("2 * x[i]", "2 * x[i]]"), ["does not compile", "answer.cu:7:", "error: "]),
            (("launch_map(", "launch("), ["no function launch_map"]),
            (("  map<<<", '  return "no";\n  map<<<'), ["the launcher returned an error: no"]),
            ((", 256, 0", ", 2560, 0"), ["2,560 threads per block", "answer.cu:11:"]),
            (("y[i] = ", "const_cast<float*>(x)[i] = y[i] = "), ["has changed x"]),
            (("2 * x[i]", "2 * x[i] + (i == 70) * 1e9f * 1e30f"), ["y[70] is inf, expected"]),
            (("2 * x[i]", "2 * x[i] + (i == 70)"), ["n = 256: y[70] is ", "Think: "]),
            (
                ("#include <stdint.h>", "#include <stdint.h>\n#include <torch/extension.h>"),
                ["includes torch/extension.h"],
            ),
        ],
    )
    def test_of_a_kernel(self, tmp_path, edit, words):
        exercise = EXERCISES[0]
        told = fails(exercise, changed(exercise, tmp_path, edit))
        assert [word for word in words if word not in told] == [], told

    def test_of_a_call_that_fits_no_function(self, tmp_path):
        """Without the headers that have the candidates."""
        told = fails(EXERCISES[10], changed(EXERCISES[10], tmp_path, ("0xffffffff, x", "x")))
        assert "answer.cu:10:" in told
        assert "included from" not in told

    @pytest.mark.parametrize(
        ("edit", "words"),
        [
            (("return weight * x * x", "return weight * x *"), ["does not load: SyntaxError", "answer.py:10: return"]),
            (
                ("return weight * x * x", "return w * x * x"),
                ["the plain call fails: NameError: name 'w'", "answer.py:10: return w"],
            ),
            (
                ("ctx.saved_tensors", "ctx.saved"),
                ["lost_gradients: AttributeError", "answer.py:18: x, weight = ctx.saved"],
            ),
            (("return weight * x * x", "exit(0)"), ["SystemExit: 0", "Which line calls sys.exit"]),
            (("practice::weigh_squares", "practice::weigh"), ["no operator practice::weigh_squares"]),
            (
                ("\n\ndef save", "\ntorch.missing\n\ndef save"),
                ["does not load: AttributeError", "answer.py:12: torch.m"],
            ),
            (
                ("\n\ndef save", "\nimport os\nos._exit(7)\n\ndef save"),
                ["has ended its process (exit status 7)", "Which line calls sys.exit"],
            ),
        ],
    )
    def test_of_an_operator(self, tmp_path, edit, words):
        told = fails(EXERCISES[28], changed(EXERCISES[28], tmp_path, edit))
        assert [word for word in words if word not in told] == [], told

    @pytest.mark.parametrize(
        ("edit", "words"),
        [
            (("a = other-work", "a other-work"), ["Line 2 is 'a other-work'; expected `question = answer`"]),
            (("a = other-work", "A = other-work"), ["with one of a, b, c, d, e, f"]),
            (("a = other-work", "a = no-sync\na = other-work"), ["a has two answers: no-sync and other-work"]),
            (("a = other-work", ""), ["a has no answer yet"]),
        ],
    )
    def test_of_a_list(self, tmp_path, edit, words):
        told = fails(EXERCISES[35], changed(EXERCISES[35], tmp_path, edit))
        assert [word for word in words if word not in told] == [], told

    def test_of_a_loop_that_never_ends(self, tmp_path, monkeypatch):
        """An operator's grader stops it; a kernel's fault is in a line of the answer, not in the emulator's headers."""
        monkeypatch.setattr(refereed, "LIMIT_S", 2)
        monkeypatch.setattr(refereed, "QUIET_S", 1)
        pids = tmp_path / "pids"
        note = f"    print(__import__('os').getpid(), file=open({str(pids)!r}, 'a'))\n"
        endless = changed(
            EXERCISES[29], tmp_path, ("    memory *=", note + "    while True:\n        pass\n    memory *=")
        )
        assert "The answer did not end within 2 s" in fails(EXERCISES[29], endless)
        for pid in pids.read_text().split():
            assert not Path("/proc", pid).exists(), "a process of the answer is still running"
        endless = changed(EXERCISES[10], tmp_path, ("distance /= 2", "distance / 2"))
        assert "answer.cu:10: x += __shfl_xor_sync" in fails(EXERCISES[10], endless)

    def test_names_of_the_task(self):
        """Faults speak of the arguments by the task's names and of places as the file has them, without a cure."""
        exercise = exercises.find("permuted_chunks")
        told = fails(exercise, exercise.skeleton)
        assert re.search(
            r"of 4 bytes and a (read|write) in line 1[24] .* the shared array chunk in any order\.\n", told
        )
        assert re.search(r"^skeleton\.cu:1[24]: .*chunk\[", told, re.MULTILINE)
        assert "__syncthreads" not in told
        assert "x (float32 [1000])" in fails(exercises.find("2"), EXERCISES[1].folder / "wrong" / "no_guard.cu")


@pytest.fixture
def practice(run, tmp_path):
    """Run practice.py with a folder of answers that does not exist yet."""

    def practice(*words, **options):
        return run("practice.py", *words, "--folder", tmp_path / "mine" / "answers", **options)

    practice.folder = tmp_path / "mine" / "answers"
    return practice


@pytest.mark.anywhere
class TestProgram:
    def test_from_start_to_passed(self, practice):
        """A whole exercise: nothing is overwritten, progress is kept, --all earlier hints are shown again."""
        answer = practice.folder / "01_map.cu"
        told = practice("start", "1").stdout
        assert "# 1. One element per thread" in told
        assert "](" not in told  # links are paths
        assert str(answer) in told
        assert answer.read_text() == EXERCISES[0].skeleton.read_text()
        told = practice("check", status=1).stdout
        assert "have not been written" in told
        assert "Not yet. A hint: python3 practice.py hint 1" in told
        for number in (1, 2, 3):
            told = practice("hint", "map").stdout
            assert re.findall(r"^(\d)\. ", told, re.MULTILINE) == [str(each + 1) for each in range(number)]
        assert "python3 practice.py solution 1" in practice("hint").stdout
        answer.write_text(EXERCISES[0].solution.read_text() + "// mine\n")
        assert "left as it is" in practice("start", "01_map").stdout
        assert answer.read_text().endswith("// mine\n")
        told = practice("check", "01").stdout
        assert "right at 3 sizes" in told
        assert "Next: python3 practice.py start 2" in told
        assert re.search(
            r"^  1  level 1  One element per thread +passed, 3 of 3 hints$", practice().stdout, re.MULTILINE
        )
        assert "# 2. A guard" in practice("start").stdout
        facts = json.loads((practice.folder / "progress.json").read_text())
        assert facts["01_map"] == {"hints": 3, "checks": 2, "passed": True}
        assert {path.name for path in practice.folder.iterdir()} == {"01_map.cu", "02_guard.cu", "progress.json"}

    def test_solution_asks_first(self, practice):
        told = practice("solution", "2", status=2)  # stdin is empty
        assert "Show the solution of exercise 2, A guard? [y/N]" in told.stdout
        assert "add --yes" in told.stderr
        assert "<<<" not in told.stdout
        assert EXERCISES[1].solution.read_text() in practice("solution", "2", "--yes").stdout
        assert re.search("A guard +solution seen", practice("list").stdout)

    def test_advice_names_the_folder(self, practice):
        told = practice("check", "2", status=2).stderr
        assert told.strip().endswith(f"first: python3 practice.py start 2 --folder {practice.folder}")

    def test_another_file(self, practice):
        """--file grades without a record."""
        assert "Not yet." in practice("check", "1", "--file", EXERCISES[0].skeleton, status=1).stdout
        assert not practice.folder.exists()

    def test_an_answer_that_crashes(self, practice, tmp_path):
        path = changed(EXERCISES[0], tmp_path, ("  map<<<", "  *(volatile int*)8 = 1;\n  map<<<"))
        told = practice("check", "1", "--file", path, status=1).stdout
        assert "The answer has crashed (SIGSEGV)" in told

    def test_the_same_inputs_again(self, practice, tmp_path):
        path = changed(EXERCISES[0], tmp_path, ("+ 1;", "+ 2;"))
        told = practice("check", "1", "--file", path, status=1).stdout
        seed = re.search(r"check 1 --seed (\d+)\)", told)[1]
        again = practice("check", "1", "--file", path, "--seed", seed, status=1).stdout
        assert again == told
        assert practice("check", "1", "--file", path, status=1).stdout != told

    def test_chinese(self, practice):
        assert "每个线程" in practice("start", "1", "--zh").stdout
        assert "has no Chinese task" in practice("start", "6", "--zh", status=2).stderr

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["check"], "which exercise? For the first one: python3 practice.py start 1"),
            (["start", "99"], f"there is no exercise 99; they have the numbers 1 to {len(EXERCISES)}"),
            (["check", "4"], "04_two_dimensions.cu does not exist; first: python3 practice.py start 4"),
            (["check", "4", "--file", "none.cu"], "none.cu does not exist"),
            (["solve", "4"], "invalid choice: 'solve'"),
        ],
    )
    def test_mistakes(self, practice, words, message):
        told = practice(*words, status=2).stderr
        assert message in told
        assert not practice.folder.exists()

    def test_an_answer_that_is_no_text(self, practice, tmp_path):
        (tmp_path / "answer.cu").write_bytes(b"// \xff")
        told = practice("check", "1", "--file", tmp_path / "answer.cu", status=2).stderr
        assert "answer.cu is no text in UTF-8" in told
        assert "is a folder, expected a file" in practice("check", "1", "--file", tmp_path, status=2).stderr

    @pytest.mark.parametrize(
        "exercise", [next(x for x in EXERCISES if x.solution.suffix == end) for end in (".cu", ".cpp")]
    )
    def test_a_machine_that_cannot_grade(self, practice, exercise):
        """Nothing is said of the answer, and no check is counted."""
        told = practice("check", exercise.number, "--file", exercise.solution, status=2, CXX="no-such-compiler")
        assert "practice.py: error: no-such-compiler is not installed" in told.stderr
        assert "Not yet" not in told.stdout

    def test_of_a_pipe_that_is_closed(self):
        """As that of `practice.py list | head -1`."""
        command = [sys.executable, str(ROOT / "practice.py"), "list"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdout.close()
            assert process.stderr.read() == b""

    def test_a_damaged_record(self, practice):
        practice.folder.mkdir(parents=True)
        (practice.folder / "progress.json").write_text("{")
        assert "delete it to start a new record" in practice("list", status=2).stderr

    def test_help(self, practice):
        assert "python3 practice.py check 1" in practice("--help").stdout
        assert "--seed" in practice("check", "--help").stdout

    def test_as_a_module(self, run, tmp_path):
        assert "A guard" in run("-m", "practice", "--folder", tmp_path, "list").stdout


@pytest.mark.thorough
@pytest.mark.parametrize("stem", ["skeleton", "solution"])
def test_nvcc_takes(stem, nvcc, tmp_path):
    """All in one file, a namespace for each: nvcc takes seconds for the headers."""
    text = "#include <cuda_bf16.h>\n#include <cuda_runtime.h>\n#include <stdint.h>\n"
    for exercise in KERNELS:
        launcher = exercises.load_grader(exercise).LAUNCHER
        text += f"#define {launcher} {launcher}_{exercise.number}\nnamespace e{exercise.number} {{\n"
        text += f'#include "{getattr(exercise, stem)}"\n}}\n#undef {launcher}\n'
    source = tmp_path / "all.cu"
    source.write_text(text)
    command = [nvcc, "-std=c++17", "-arch=sm_75", "-c", source, "-o", tmp_path / "all.o"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "exercise",
    [pytest.param(each, marks=[] if each.number in SHORT else pytest.mark.thorough) for each in KERNELS],
    ids=name,
)
def test_on_a_gpu(exercise, cuda, nvcc):
    """The solution is right there, too, and timed next to torch."""
    found = on_gpu.measure(exercises.load_grader(exercise), exercise.solution, exercise.solution)
    assert found["solution"] > 0
    assert found["torch"] > 0
    assert found["flops"] or found["copy"] > 0


ON_GPU = [
    pytest.param(each, answer, marks=pytest.mark.thorough if answer in each.wrong else [], id=answer.stem)
    for each in EXERCISES
    if each.needs_gpu
    for answer in (each.solution, *each.wrong)
]


@pytest.mark.parametrize(("exercise", "answer"), ON_GPU)
def test_an_exercise_for_a_gpu(exercise, answer, cuda, practice):
    """In a process of its own: the referee forks before CUDA is used."""
    is_right = answer == exercise.solution
    told = practice("check", exercise.number, "--file", answer, status=0 if is_right else 1).stdout
    assert ("Passed." if is_right else head(answer)["says"]) in told
    if is_right:
        practice("check", exercise.number, "--file", exercise.skeleton, status=1)


def test_without_a_gpu(practice, tmp_path, monkeypatch):
    """What needs a GPU says so, and is not the next exercise where none is."""
    assert "the current stream (needs a GPU)" in practice("list").stdout
    told = practice("check", "35", "--file", EXERCISES[34].solution, "--cpu", status=2).stderr
    assert "exercise 35 needs a GPU, and --cpu was given" in told
    answers = progress.Answers(tmp_path)
    for exercise in EXERCISES[:34]:
        answers.record(exercise, passed=True)
    for has_gpu, name in ((True, "35_stream"), (False, "36_benchmarks")):
        monkeypatch.setattr(progress, "HAS_GPU", has_gpu)
        assert answers.next() == name


def test_the_tables_of_a_task_are_those_of_the_record():
    exercise = exercises.find("profile")
    for row in exercises.load_grader(exercise).tables():
        assert row in exercise.task


def test_the_times_of_the_tasks_are_those_of_the_record():
    """In English and in Chinese: of the solution, of torch, and of a copy."""
    for row in json.loads((ROOT / "docs/results/h100-practice.json").read_text())["results"]:
        times = [row[key] for key in ("us", "torch_us", "copy_us") if key in row]
        shown = [f"{us:,.0f}" if us >= 100 else f"{us:.1f}" for us in times]
        for task in (exercises.HERE / row["exercise"]).glob("task*.md"):
            line = next(line for line in task.read_text("utf-8").splitlines() if "H100" in line)
            assert [number for number in shown if not re.search(rf"(?<![\d,.]){number}(?!,?\d)", line)] == [], task


def test_answers_are_not_part_of_the_project():
    assert "answers/" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_page_shows_what_check_says(practice, forks):
    kernel, operator = re.findall(r"```text\n(.*?)```", (ROOT / "docs" / "practice.md").read_text(), re.DOTALL)
    practice("start", "3")
    assert practice("check", "3", status=1).stdout.replace(f" --folder {practice.folder}", "") == kernel
    assert operator == textwrap.indent(fails(EXERCISES[28], EXERCISES[28].skeleton), "  ") + "\n"


@pytest.mark.thorough
@pytest.mark.anywhere
def test_the_notebook_starts_with_an_exercise(run):
    cells = json.loads((ROOT / "docs" / "tour.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    setup, exercise = code[:2]
    assert "have not been written by any thread" in run("-c", f"{setup}\n{exercise}").stdout
    solved = exercise.replace("// Here: write y[i].", "y[i] = 2 * x[i] + 1;")
    assert "Passed." in run("-c", f"{setup}\n{solved}").stdout
