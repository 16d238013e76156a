"""The reader's own folder: answers, and progress.json with what has been done. No answer is ever overwritten."""

import json
import os
import shutil
from pathlib import Path

from exercises import Exercise, Mistake, find_all

# The driver's device on Linux, and on Windows' Linux; asking torch would take seconds.
HAS_GPU = any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg"))


class Answers:
    """A folder of answers. It is made with the first one."""

    def __init__(self, folder: Path, option: str = ""):
        """option: of practice.py, which names the folder."""
        self.folder, self.option = folder, option
        self.file = folder / "progress.json"

    def command(self, name: str, number: int | str) -> str:
        """A command of practice.py, as the reader types it."""
        return f"python3 practice.py {name} {number}{self.option}"

    def path(self, exercise: Exercise) -> Path:
        """Where the answer is, or will be: NN_name, with the skeleton's ending."""
        return self.folder / f"{exercise.name}{exercise.skeleton.suffix}"

    def start(self, exercise: Exercise) -> bool:
        """Copy the skeleton. False if there is an answer: it is left alone."""
        path = self.path(exercise)
        if path.exists():
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        if exercise.skeleton.is_dir():
            shutil.copytree(exercise.skeleton, path)
        else:
            with path.open("x", encoding="utf-8") as file:
                file.write(exercise.skeleton.read_text("utf-8"))
        return True

    def known(self) -> dict[str, dict]:
        """By names of exercises: {"hints": shown, "checks": made, "passed": True, "solution": shown, "last": True}."""
        if not self.file.exists():
            return {}
        try:
            return dict(json.loads(self.file.read_text("utf-8")))
        except ValueError:
            raise Mistake(f"{self.file} is not JSON; delete it to start a new record, your answers stay") from None

    def of(self, exercise: Exercise) -> dict:
        return self.known().get(exercise.name, {})

    def record(self, exercise: Exercise, **facts: object) -> None:
        """Add facts about an exercise, which becomes the last one."""
        known = self.known()
        for each in known.values():
            each.pop("last", None)
        known[exercise.name] = known.get(exercise.name, {}) | facts | {"last": True}
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
        os.replace(new, self.file)

    def last(self) -> str:
        """The name of the exercise that was last worked on."""
        for name, facts in self.known().items():
            if facts.get("last"):
                return name
        raise Mistake(f"which exercise? For the first one: {self.command('start', 1)}")

    def next(self, after: Exercise | None = None) -> str:
        """The next exercise that has not been passed and can be done here, or the first one; empty if there is none."""
        known = self.known()
        possible = [each for each in find_all() if HAS_GPU or not each.needs_gpu]
        left = [each.name for each in possible if not known.get(each.name, {}).get("passed")]
        behind = [name for name in left if after and name > after.name]
        return (behind or left or [""])[0]
