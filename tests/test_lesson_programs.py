"""The lessons' programs: options, files of results, and how they end. test_examples.py has those that need no GPU."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from lab import lesson

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.mark.thorough
@pytest.mark.anywhere
def test_pictures(run, tmp_path):
    """docs/figures.py draws those that the pages show, with text that stays text."""
    pytest.importorskip("matplotlib")
    code = "import pathlib, sys; sys.path.insert(0, 'docs'); import figures; figures.draw(pathlib.Path(sys.argv[1]))"
    run("-c", code, tmp_path)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn.keys() == {path.name for path in (EXAMPLES.parent / "docs" / "results").glob("*.svg")}
    assert "rows of x</text>" in drawn["h200-int4.svg"]
    assert all("prefers-color-scheme: dark" in picture for picture in drawn.values())


@pytest.mark.thorough
@pytest.mark.anywhere
@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure for minutes")
@pytest.mark.parametrize("program", ["*/bench.py", "llama/compare.py"])
def test_without_a_gpu(program, run, tmp_path):
    """It ends with a line, and leaves an earlier file alone. A mistake in an option is found first."""
    (tmp_path / "file.json").write_text("[1]")
    for path in EXAMPLES.glob(program):
        assert "cannot write" in run(path, "--json", tmp_path / "missing" / "file.json", status=2).stderr
        assert "needs a GPU" in run(path, "--json", tmp_path / "file.json", status=1).stderr, path
    assert (tmp_path / "file.json").read_text() == "[1]"


def counted(run, tmp_path, program, *options):
    """What a program has written that ran its kernels in the emulator, by kernel."""
    file = tmp_path / "counts.json"
    out = run(EXAMPLES / program, "--emulate", "--json", file, *options).stdout
    assert "run in the emulator" in out
    rows = json.loads(file.read_text())["results"]
    return {tuple(row[key] for key in ("dtype", "kernel", "rung") if key in row): row for row in rows}


def test_transposition_in_the_emulator(run, tmp_path):
    """512 x 256 elements of 4 bytes: the first kernel writes 32 bytes for each of them, the second one waits for one
    bank, and the third one has neither fault."""
    rows = counted(run, tmp_path, "transpose/transpose.py")
    assert len(rows) == 10
    elements = 512 * 256
    first, second, third = (rows["float32", name] for name in list(dict.fromkeys(name for _, name in rows))[:3])
    assert first["sectors_stored"] == elements
    assert second["sectors_stored"] == third["sectors_stored"] == elements * 4 / 32
    assert second["bank_conflicts"] == elements / 32 * 31
    assert first["bank_conflicts"] == third["bank_conflicts"] == 0


@pytest.mark.anywhere
def test_reduction_in_the_emulator(run, tmp_path):
    """row_sum reads 16 x 4096 floats once; softmax reads them twice, and writes them."""
    rows = counted(run, tmp_path, "reduction/reduction.py")
    sectors = 16 * 4096 * 4 // 32
    assert rows["row_sum",]["sectors_loaded"] == sectors
    assert rows["softmax",]["sectors_loaded"] == 2 * sectors
    assert rows["softmax",]["sectors_stored"] == sectors


# The rungs up to the first that needs a Hopper GPU, and for each the sectors that it loads over the fewest.
LADDERS = {"add_rms_norm": 8, "matmul": 4, "int4_linear": 3, "decode_attention": 5}


@pytest.mark.thorough
@pytest.mark.anywhere
@pytest.mark.parametrize("lesson", LADDERS)
def test_ladder_in_the_emulator(lesson, run, tmp_path):
    """Each rung is right, and has no fault; the first one loads several times what the last one does."""
    rows = [*counted(run, tmp_path, f"{lesson}/ladder.py").values()]
    assert len(rows) == LADDERS[lesson]
    assert rows[0]["sectors_loaded"] > 10 * rows[-1]["sectors_loaded"]


def test_runner_of_the_ladders(monkeypatch, capsys):
    """Rows with the median time and the ratio to the standard; a rung that refuses is left out, and a wrong one, also
    one with a NaN, ends the program before any time counts."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from common import ladders

    def refuse():
        raise RuntimeError("needs more")

    def size(**results):
        calls = {name: refuse if x is None else lambda x=x: x for name, x in results.items()}
        times = {"standard": [1.0, 2.0, 8.0], "rung": [2.0, 8.0, 4.0], "slow": [8.0, 8.0, 8.0]}
        one = {name: iter(each) for name, each in times.items()}
        return ladders.Size(
            facts={"n": 3},
            calls=calls,
            standard="standard",
            error=lambda x: abs(x - 1),
            most=0.1,
            time=lambda names: ladders.in_turn(lambda name: next(one[name]), names, 3),
            columns=lambda us: {"rate": 8 / us},
        )

    rows = [*ladders.measure_size(size(standard=1.0, rung=1.05, slow=None), "of_standard")]
    assert rows == [
        {"n": 3, "rung": "standard", "us": 2.0, "rate": 4.0, "of_standard": 1.0},
        {"n": 3, "rung": "rung", "us": 4.0, "rate": 2.0, "of_standard": 0.5},
    ]
    assert "slow is left out: needs more" in capsys.readouterr().out
    for wrong in (1.2, float("nan")):
        with pytest.raises(SystemExit, match="rung is wrong at n 3"):
            next(ladders.measure_size(size(standard=1.0, rung=wrong), "of_standard"))
    with pytest.raises(RuntimeError, match="needs more"):
        next(ladders.measure_size(size(standard=None), "of_standard"))


@pytest.mark.thorough
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("lesson", LADDERS)
def test_ladder_once(lesson, run):
    """Each rung once on a GPU: none that this GPU has is left out."""
    out = run(EXAMPLES / lesson / "ladder.py", "--once", "512").stdout
    is_hopper = torch.cuda.get_device_capability()[0] == 9
    assert not is_hopper or "is left out" not in out


@pytest.mark.thorough
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_size_of_the_ladder(lesson):
    """Rungs of the product are checked and timed at a small size: a row for each that runs here, and torch's."""
    ladder = lesson("matmul", "ladder")
    rows = [*ladder.ladders.measure_size(ladder.make_size(256, 256, 256, ladder.RUNGS), "of_torch")]
    assert {ladder.TORCH, ladder.RUNGS[1], ladder.RUNGS[4]} <= {row["rung"] for row in rows}
    assert rows[0]["of_torch"] == 1
    assert all(row["us"] > 0 for row in rows)


@pytest.mark.parametrize(("options", "message"), [(["0"], "from 1 on"), (["8", "--emulate"], "on a GPU")])
def test_once_of_the_ladders(options, message, monkeypatch, capsys):
    """A size that makes no sense, and rungs that would run in the emulator: one line, and nothing runs."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from common import ladders

    monkeypatch.setattr("sys.argv", ["ladder.py", "--once", *options])
    callbacks = dict.fromkeys(("is_ready", "sizes", "once", "emulated"), pytest.fail)
    with pytest.raises(SystemExit) as ended:
        ladders.run("A ladder.", EXAMPLES / "matmul" / "ladder.cu", **callbacks, once_is="", ratio="")
    assert message in f"{ended.value}{capsys.readouterr().err}"


@pytest.mark.anywhere
@pytest.mark.parametrize("change", [pytest.param("tile[j][i]", marks=pytest.mark.thorough), "tile[i][j] = x"])
def test_a_wrong_kernel_in_the_emulator(change, run, project):
    """A transposition that does not transpose, and one that reads what nothing wrote."""
    source = project / "examples" / "transpose" / "transpose.cu"
    text = source.read_text()
    assert change in text
    source.write_text(text.replace(change, "tile[i][j]" if "j][i" in change else "tile[j][i] = x"))
    found = run("examples/transpose/transpose.py", "--emulate", root=project, status=1)
    assert "rung 2" in found.stderr


def test_cut_short(monkeypatch, tmp_path):
    """The rows that a program has measured are in its file, even if it does not reach its end; so are the rivals."""

    def measure(_):
        yield {"ms": 1.5}
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(lesson.cli, "environment", lambda device: {"device": str(device)})
    monkeypatch.setattr(lesson, "RIVALS", ("pytest", "not-installed"))
    file = tmp_path / "file.json"
    with pytest.raises(KeyboardInterrupt):
        lesson.report(Namespace(json=file), lambda: True, measure)
    content = json.loads(file.read_text())
    assert content["results"] == [{"ms": 1.5}]
    assert content["environment"]["rivals"] == {"pytest": pytest.__version__}


def test_contestants():
    """One that refuses a size is left out; ours must not refuse."""

    def refuse():
        raise RuntimeError("rows are too wide")

    row = lesson.compare({"width": 8}, {"torch": lambda: 4.0, "liger": refuse, "ours": lambda: 1.0}, "ours")
    assert row == {"width": 8, "torch": 4.0, "ours": 1.0, "of_best": 0.25}
    with pytest.raises(RuntimeError, match="too wide"):
        lesson.compare({}, {"torch": lambda: 4.0, "ours": refuse}, "ours")
