"""examples/port: the patches lead from `before` to `after`, every step builds and passes the same tests, and the names
of the page's table are in torch's headers."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from lab import toolchain
from lab.build import leftovers

ROOT = Path(__file__).resolve().parent.parent
PORT = ROOT / "examples" / "port"
PAGE, TABLES = ((ROOT / "docs" / name).read_text() for name in ("16_port.md", "stable.md"))
PATCHES = sorted((PORT / "steps").glob("*.patch"))


@pytest.fixture(scope="module")
def env():
    """The toolkit; and, as ATen's CUDA headers include those of cuSPARSE and others, these from torch's packages."""
    names = ("ADD2_WITH_CUDA", "CUDA_HOME", "TORCH_CUDA_ARCH_LIST")
    found = {name: value for name, value in toolchain.environment().items() if name in names}
    found["CFLAGS"] = "-O0 -g0"  # torch's large headers take long enough
    spec = importlib.util.find_spec("nvidia") if torch.version.cuda else None
    for folder in spec.submodule_search_locations if spec else []:
        found["CPATH"] = os.pathsep.join(map(str, Path(folder).glob("cu*/include")))
    return found


def step(folder, number):
    """A copy of `before` with that many patches applied."""
    shutil.copytree(PORT / "before", folder, ignore=leftovers)
    for patch in PATCHES[:number]:
        subprocess.run(["git", "apply", str(patch)], cwd=folder, check=True, env=os.environ | {"GIT_DIR": str(folder)})
    return folder


def files(folder):
    found = [path for path in folder.rglob("*") if path.suffix in (".py", ".h", ".cpp", ".cu")]
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def test_patches_lead_from_before_to_after(tmp_path):
    assert files(step(tmp_path / "last", len(PATCHES))) == files(PORT / "after")


AFTER = """
import torch, blend
torch._dynamo.config.capture_dynamic_output_shape_ops = True
a, b = torch.rand(2, 3, 4)
for name, call in {"blend": lambda x: blend.blend(x, b), "sum_list": lambda x: blend.sum_list([x, b])}.items():
    for transform in (lambda x: torch.func.jvp(call, (x,), (x,))[1], torch.func.grad(lambda x: call(x).sum())):
        for is_whole in (True, False):
            torch.compiler.reset()
            try:
                print("a wrong derivative:", torch.compile(transform, fullgraph=is_whole)(a))
            except Exception as error:
                refused = "derivatives are not implemented" in str(error) or "setup_context" in str(error)
                print(name, "refused" if refused else error)
try:
    print("no gradient for alpha:", blend.blend(a, b, None, torch.tensor(0.1, requires_grad=True)))
except TypeError as error:
    assert "expected a number" in str(error)
assert torch.equal(torch.vmap(blend.blend)(a, b), blend.blend(a, b))
both = torch.vmap(lambda x, y: blend.sum_list([x, y]), in_dims=(1, None))
assert torch.equal(both(a, b[:, 0]), a.t() + b[:, 0])
chosen = lambda x: (blend.blend(x[x > 0.5], x[x > 0.5]), blend.sum_list([x[x > 0.5], x[x > 0.5]]))
torch.testing.assert_close(torch.compile(chosen, fullgraph=True)(a), (a[a > 0.5], 2 * a[a > 0.5]))
"""


@pytest.mark.thorough  # a minute each, for torch's large headers; two with nvcc
@pytest.mark.parametrize("number", [*(pytest.param(n, marks=pytest.mark.slow) for n in range(7)), 7])
def test_every_step_works(run, env, tmp_path, number):
    """Step 0 is `before`, the last one is `after`."""
    folder = step(tmp_path / "port", number)
    run("setup.py", "-q", "build_ext", "--inplace", root=folder, **env)
    tests = ["-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", PORT / "test_blend.py"]
    run(*tests, root=folder, PYTHONPATH=str(folder))
    if number == len(PATCHES):  # as the page says: vmap works, derivatives that do not are refused
        assert run("-c", AFTER, PYTHONPATH=str(folder)).stdout.split() == 4 * ["blend", "refused"] + 4 * [
            "sum_list",
            "refused",
        ]
        run("setup.py", "-q", "bdist_wheel", root=folder, **env)
        (wheel,) = (folder / "dist").glob("*.whl")
        assert wheel.name.endswith("-py3-none-linux_x86_64.whl")  # which 3.14t takes, too
        library = next((folder / "build").rglob("_C.so"))
        assert not re.search(r"\b_?Py[A-Z_]\w*", subprocess.check_output(["nm", "-D", "-u", library], text=True))


@pytest.mark.parametrize("target", [["-DTORCH_TARGET_VERSION=0x020a000000000000"], []], ids=["2.10", "newest"])
def test_new_names_compile(target):
    command = ["c++", "-std=c++20", "-fsyntax-only", *target, "-isystem"]
    subprocess.run([*command, Path(torch.__file__).parent / "include", PORT / "names.cpp"], check=True)


def test_table_is_compiled():
    """Each new name and header of the two tables is in names.cpp."""
    text = (PORT / "names.cpp").read_text()
    rows = re.findall(r"^\| (?:`|2\.).*?\| (.*?) \| (.*?) \| .*?\|.*\|$", TABLES, re.MULTILINE)
    names = [name for new, _ in rows for name in re.findall(r"`(?:\w+::)*(\w+)", new)]
    headers = [path for _, header in rows for path in re.findall(r"`(\S+\.h)`", header)]
    assert len(rows) >= 23
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []
    assert [path for path in headers if f"{path}>" not in text] == []


def test_shown_differences_are_in_the_patches():
    lines = {line for patch in PATCHES for line in patch.read_text().splitlines()}
    blocks = re.findall(r"^```diff\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert {line for block in blocks for line in block.splitlines()} <= lines
