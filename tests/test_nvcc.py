"""What nvcc and ptxas say of every kernel: no warning, no spilled register, no array in local memory, no wgmma that is
made serial."""

import re
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
# the sources below examples/: the GPUs to compile for, and those that take minutes more
KERNELS = {
    "../kernel/add2_kernel.cu": (["75", "90", "120"], ["80", "86", "89", "100", "103", "110", "121"]),
    "transpose/*.cu": (["75", "90"], ["80", "86", "89", "100", "103", "110", "120", "121"]),
    "reduction/*.cu": (["75", "90"], ["80", "86", "89", "100", "103", "110", "120", "121"]),
    "add_rms_norm/add_rms_norm_kernel.cu": (["75", "90"], ["80", "86", "89", "100", "103", "110", "120", "121"]),
    "matmul/ladder.cu": (["80", "90a"], ["100", "103", "110", "121"]),
    "matmul/gated_linear_kernel.cu": (["80", "90a", "100"], ["103", "110", "121"]),
    "int4_linear/int4_linear_kernel.cu": (["80", "90a"], ["86", "89", "90", "100", "103", "110", "120", "121"]),
    "int4_linear/starts_half.cu": ([], ["90a", "80", "86", "89", "90", "100", "103", "110", "120", "121"]),
    "int4_linear/ladder.cu": (["90a"], []),  # clusters need sm_90, wgmma 90a
    "add_rms_norm/ladder.cu": (["90"], []),
    "decode_attention/ladder.cu": (["90"], []),
    "decode_attention/decode_attention_kernel.cu": (["80", "90"], ["86", "89", "100", "103", "110", "120", "121"]),
}
CASES = [(name, arch) for name, (archs, _) in KERNELS.items() for arch in archs]
CASES += [pytest.param(name, x, marks=pytest.mark.slow) for name, (_, slow) in KERNELS.items() for x in slow]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "arch"), CASES)
def test_no_warning_and_no_spill(name, arch, nvcc, tmp_path):
    folder = (ROOT / "examples" / name).parent.resolve()
    standard = "c++14" if folder.name == "kernel" else "c++17"
    command = [nvcc, "-O3", f"-std={standard}", f"-I{ROOT / 'examples'}", f"-I{ROOT / 'include'}"]
    command += [f"-gencode=arch=compute_{arch},code=sm_{arch}", "-Werror=all-warnings"]
    command += ["-Xptxas=-v,--warning-as-error", "-Xcompiler=-Wall,-Wextra,-Werror", "-c", "-o", tmp_path / "kernel.o"]
    for source in folder.glob(Path(name).name):
        done = subprocess.run([*command, source], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found = re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads|cumulative stack)", done.stderr)
        assert set(found) == {"0"}, done.stderr
        assert "C75" not in done.stderr  # wgmma made serial


@pytest.mark.thorough
def test_rope_has_wide_loads_and_stores(nvcc, tmp_path):
    command = [nvcc, "-arch=sm_90", "-std=c++17", "-Werror=all-warnings", "-ptx"]
    command += [f"-isystem={Path(torch.__file__).parent / 'include'}", "-o", tmp_path / "rope.ptx"]
    command += [ROOT / "examples/rope/rope_kernel.cu"]
    subprocess.run(command, check=True)
    text = (tmp_path / "rope.ptx").read_text()
    assert text.count("ld.global.v4") + text.count("ld.v4") == 4
    assert text.count("st.global.v4") + text.count("st.v4") == 2
