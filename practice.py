"""Exercises that grade themselves: kernels and operators run on the CPU, so no GPU and no CUDA toolkit is needed.

    python3 practice.py list
    python3 practice.py start 1        # copies the skeleton to answers/, and shows the task
    python3 practice.py check 1        # grades your answer; without a number the last exercise
    python3 practice.py hint 1         # one hint after the other
    python3 practice.py solution 1     # asks first

docs/practice.md explains more. The exercises are in examples/practice.
"""

import argparse
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "practice")]

import exercises  # noqa: E402
from progress import Answers  # noqa: E402

from lab import files  # noqa: E402

DEFAULT = ROOT / "answers"  # the folder
LIMIT_S = 300  # for grading an answer


def main() -> int:
    args = parse()
    answers = Answers(args.folder, "" if args.folder == DEFAULT else f" --folder {shlex.quote(str(args.folder))}")
    try:
        if args.command == "list":
            return show_list(answers)
        word = args.exercise or (answers.next() or "1" if args.run is start else answers.last())
        return args.run(exercises.find(word), answers, args)
    except BrokenPipeError:  # of `| head`, which has read enough
        return files.end_of_closed_pipe()
    except (exercises.Mistake, OSError) as error:
        print(f"practice.py: error: {error}", file=sys.stderr)
        return 2


def parse() -> argparse.Namespace:
    keep = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="practice.py", description=__doc__, formatter_class=keep)
    folder = {"type": Path, "metavar": "FOLDER", "help": "yours (default: answers)"}
    parser.add_argument("--folder", default=DEFAULT, **folder)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def add_command(name: str, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--folder", default=argparse.SUPPRESS, **folder)  # after the command, too
        return command

    def add(run: Callable[..., int], text: str, default: str = "the last one") -> argparse.ArgumentParser:
        command = add_command(run.__name__, text)
        command.add_argument("exercise", nargs="?", metavar="N", help=f"its number or name (default: {default})")
        command.set_defaults(run=run)
        return command

    add_command("list", "all exercises, and which of them you have passed (the default)")
    text = "copy the skeleton to your folder, unless there is an answer, and show the task"
    add(start, text, "the next one").add_argument("--zh", action="store_true", help="the task in Chinese (1 to 5)")
    of_check = add(check, "grade your answer")
    of_check.add_argument("--file", type=Path, help="grade this file instead of the one in your folder")
    of_check.add_argument("--seed", type=int, help="of the random inputs (default: another one each time)")
    of_check.add_argument("--cpu", action="store_true", help="do not use a GPU")
    add(hint, "show the next hint")
    add(solution, "show the solution").add_argument("--yes", action="store_true", help="do not ask")
    args = parser.parse_args()
    args.command = args.command or "list"
    return args


def show_list(answers: Answers) -> int:
    known, part = answers.known(), None
    for exercise in exercises.find_all():
        if exercise.part != part:
            part = exercise.part
            print(f"\n{part}")
        facts = known.get(exercise.name, {})
        state = []
        if facts.get("passed"):
            state.append("passed")
        elif answers.path(exercise).exists():
            state.append("started")
        if facts.get("hints"):
            state.append(f"{facts['hints']} of {len(exercise.hints)} hints")
        if facts.get("solution"):
            state.append("solution seen")
        title = exercise.title + " (needs a GPU)" * exercise.needs_gpu
        print(f"{exercise.number:3}  level {exercise.level}  {title:56}{', '.join(state)}".rstrip())
    print("\nTo work on one: python3 practice.py start NUMBER")
    return 0


def shown(path: Path) -> str:
    """A path as short as it can be typed."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def start(exercise: exercises.Exercise, answers: Answers, args: argparse.Namespace) -> int:
    text = exercise.task
    if args.zh and not (text := exercise.chinese_task):
        raise exercises.Mistake(f"exercise {exercise.number} has no Chinese task; leave --zh out")
    is_new = answers.start(exercise)
    answers.record(exercise)
    print(re.sub(r"\[([^\]]+)\]\((?:\.\./)+([^)]+)\)", r"\1 (\2)", text))  # links become paths
    if is_new:
        path = shown(answers.path(exercise))
        print(f"Write your answer in {path}, then: {answers.command('check', exercise.number)}")
    else:
        print(f"{shown(answers.path(exercise))} exists and is left as it is. To start anew, rename it first.")
    return 0


def check(exercise: exercises.Exercise, answers: Answers, args: argparse.Namespace) -> int:
    answer = args.file or answers.path(exercise)
    if not answer.exists():
        first = "" if args.file else f"; first: {answers.command('start', exercise.number)}"
        raise exercises.Mistake(f"{shown(answer)} does not exist{first}")
    if answer.is_dir() != exercise.skeleton.is_dir():
        found, expected = ("a folder", "a file") if answer.is_dir() else ("a file", "a folder")
        raise exercises.Mistake(f"{shown(answer)} is {found}, expected {expected}")
    print(f"{exercise.number}. {exercise.title}", flush=True)
    status = run_apart(lambda: grade(exercise, answer, args))
    if status > 1:
        return status
    if args.file:
        print("Not yet." if status else "Passed.")
        return status
    passed = {"passed": True} if status == 0 else {}
    answers.record(exercise, checks=answers.of(exercise).get("checks", 0) + 1, **passed)
    if status == 0:
        print(f"Passed. To compare: {answers.command('solution', exercise.number)}")
        following = answers.next(exercise)
        number = following[:2].lstrip("0")
        print(
            f"Next: {answers.command('start', number)}"
            if following
            else "All exercises that can be done on this machine are passed."
        )
    else:
        print(f"Not yet. A hint: {answers.command('hint', exercise.number)}")
    return status


def grade(exercise: exercises.Exercise, answer: Path, args: argparse.Namespace) -> int:
    """In a process of its own. Prints what was found."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # is_available() then leaves CUDA to child processes
    import torch
    from grading import NotYet

    if exercise.needs_gpu and (args.cpu or not torch.cuda.is_available()):
        why = "--cpu was given" if args.cpu else "torch sees none"
        print(f"practice.py: error: exercise {exercise.number} needs a GPU, and {why}", file=sys.stderr)
        return 2
    seed = torch.seed() % 1_000_000 if args.seed is None else args.seed
    try:
        lines = exercises.grade(exercise, answer, seed)
        grader = exercises.load_grader(exercise)
        if hasattr(grader, "LAUNCHER") and not args.cpu:
            import on_gpu

            if not on_gpu.why_not():
                lines += on_gpu.describe(on_gpu.measure(grader, answer, exercise.solution))
    except torch.OutOfMemoryError:
        lines.append("not timed: the GPU has too little free memory; --cpu leaves this out")
    except UnicodeDecodeError as error:
        print(f"practice.py: error: {shown(answer)} is no text in UTF-8: {error}", file=sys.stderr)
        return 2
    except NotYet as found:
        if found.kind == "machine":
            print(f"practice.py: error: {found}", file=sys.stderr)
            return 2
        print("\n" + "\n".join("  " + line for line in str(found).splitlines()))
        if found.kind in ("values", "nan"):
            print(f"  (The same inputs again: python3 practice.py check {exercise.number} --seed {seed})")
        print()
        return 1
    print("\n" + "\n".join(f"  {line}" for line in lines) + "\n")
    return 0


def run_apart(function: Callable[[], int]) -> int:
    """Call a function in a child process, as an answer may crash or never end. Returns its result, or 1."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        try:
            status = function()
            sys.stdout.flush()
        except KeyboardInterrupt:
            status = 130
        except BaseException:
            sys.excepthook(*sys.exc_info())
            status = 3
        os._exit(status)
    try:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except KeyboardInterrupt:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print("interrupted", file=sys.stderr)
        return 130
    if status == -signal.SIGALRM:
        print(f"\n  It did not end within {LIMIT_S} s. Is there a loop that never ends?\n")
    elif status < 0:
        print(
            f"\n  The answer has crashed ({signal.Signals(-status).name}). A launcher's own code must not touch x[i].\n"
        )
    return status if status >= 0 else 1


def hint(exercise: exercises.Exercise, answers: Answers, args: argparse.Namespace) -> int:
    used = answers.of(exercise).get("hints", 0)
    for number, text in enumerate(exercise.hints[: used + 1], 1):
        print(f"{number}. {text}")
    if used >= len(exercise.hints):
        print(f"\nThese are all hints. The solution: {answers.command('solution', exercise.number)}")
        return 0
    answers.record(exercise, hints=used + 1)
    left = len(exercise.hints) - used - 1
    if left:
        print(f"\n{left} more {'hint' if left == 1 else 'hints'}.")
    return 0


def solution(exercise: exercises.Exercise, answers: Answers, args: argparse.Namespace) -> int:
    has_passed = answers.of(exercise).get("passed")
    if not (has_passed or args.yes):
        try:
            wish = input(f"Show the solution of exercise {exercise.number}, {exercise.title}? [y/N] ")
        except EOFError:
            print(
                "practice.py: error: there is no answer on stdin; to see it without a question, add --yes",
                file=sys.stderr,
            )
            return 2
        if wish.strip().lower() not in ("y", "yes"):
            return 1
    if not has_passed:
        answers.record(exercise, solution=True)
    path = exercise.solution
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    for file in filter(Path.is_file, files):
        print(f"{shown(file)}:\n\n{file.read_text('utf-8')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
