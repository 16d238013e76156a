"""The exercises: folders NN_name next to this file. Nothing here imports torch, so listing them is fast.

task.md        the title, "Level N.", perhaps "Needs a GPU.", what to write; perhaps task.zh-CN.md
skeleton.*     what the reader starts with: a file, or a folder `skeleton`
solution.*     the same, solved
hints.md       three hints, numbered
grader.py      what must hold: see grading.py
wrong/         answers that must fail; their first lines say how they are wrong, and what the grader says
"""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
PARTS = {
    "Broken": "Broken kernels: find the mistake",
    "Operator": "Operators",
    "Measurement": "Measurements",
    "": "Kernels",
}  # by the first word of the title


class Mistake(Exception):
    """Of the user: one line, with what to do."""


@dataclass(frozen=True)
class Exercise:
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def number(self) -> int:
        return int(self.name[:2])

    @property
    def task(self) -> str:
        return (self.folder / "task.md").read_text("utf-8")

    @property
    def chinese_task(self) -> str:
        """An empty string if there is none."""
        path = self.folder / "task.zh-CN.md"
        return path.read_text("utf-8").partition("\n<!-- translates")[0] if path.exists() else ""

    @property
    def title(self) -> str:
        return re.match(r"# \d+\. (.+)", self.task)[1]

    @property
    def part(self) -> str:
        """The heading under which it is listed."""
        return PARTS.get(self.title.partition(":")[0], PARTS[""])

    @property
    def level(self) -> int:
        return int(re.search(r"^Level (\d)\.", self.task, re.MULTILINE)[1])

    @property
    def needs_gpu(self) -> bool:
        return re.search(r"^Level \d\. Needs a GPU\.", self.task, re.MULTILINE) is not None

    @property
    def skeleton(self) -> Path:
        return self._only("skeleton")

    @property
    def solution(self) -> Path:
        return self._only("solution")

    @property
    def wrong(self) -> list[Path]:
        return sorted((self.folder / "wrong").iterdir())

    @property
    def hints(self) -> list[str]:
        text = (self.folder / "hints.md").read_text("utf-8")
        return [" ".join(hint.split()) for hint in re.split(r"^\d+\. ", text, flags=re.MULTILINE)[1:]]

    def _only(self, stem: str) -> Path:
        [path] = (path for path in self.folder.iterdir() if path.stem == stem)
        return path


def find_all() -> list[Exercise]:
    return [Exercise(folder) for folder in sorted(HERE.glob("[0-9][0-9]_*"))]


def find(word: str) -> Exercise:
    """By number or name: 3, 03, grid_stride, 03_grid_stride."""
    known = find_all()
    for exercise in known:
        if word in (exercise.name, exercise.name[3:]) or (word.isdecimal() and int(word) == exercise.number):
            return exercise
    raise Mistake(f"there is no exercise {word}; they have the numbers {known[0].number} to {known[-1].number}")


def grade(exercise: Exercise, answer: Path, seed: int) -> list[str]:
    """Grade a file, or a folder of files. Returns lines to print if it passes; grading.NotYet says why it does not."""
    import torch

    torch.manual_seed(seed)
    grader = load_grader(exercise)
    if hasattr(grader, "grade"):
        return grader.grade(answer)
    import emulated

    return emulated.grade(grader, answer)


def load_grader(exercise: Exercise) -> ModuleType:
    """The module of its grader.py, which imports torch."""
    spec = importlib.util.spec_from_file_location(f"grader_{exercise.number}", exercise.folder / "grader.py")
    grader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(grader)
    return grader
