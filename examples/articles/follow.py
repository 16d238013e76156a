"""Build libadd2.so by FindCUDA's cuda_add_library, and follow add2_kernel.cu on its way.

What it prints are files and commands of this very build; last, the two commands that CMake's own CUDA language needs.
"""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from lab import cli, toolchain  # noqa: E402

TORCH = Path(torch.__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", metavar="DIR", default="build/findcuda", help="folder (default: %(default)s)")
    folder = Path(parser.parse_args().build).resolve()
    cmake, nvcc = toolchain.require("cmake"), toolchain.find_nvcc()
    toolchain.require("ninja")
    if nvcc is None:
        raise toolchain.Failure(f"this shows how CMake calls nvcc, so it needs one: {toolchain.cuda_cure()}")

    configure = [cmake, "-S", ROOT / "examples/articles", "-B", folder, "--fresh", "-G", "Ninja"]
    configure += [f"-DTORCH_DIR={TORCH}", f"-DCUDA_TOOLKIT_ROOT_DIR={toolchain.cuda_root(nvcc)}"]
    configure += ["-DCMAKE_BUILD_TYPE=Release"]
    env = toolchain.environment()
    for command in (configure, [cmake, "--build", folder, "--clean-first", "--verbose"]):
        print("$", shlex.join(map(str, command)), file=sys.stderr)
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise toolchain.Failure(f"{shlex.join(map(str, command))}\n{done.stdout}")

    names = {str(folder): "BUILD", str(TORCH): "TORCH", str(ROOT): "PROJECT"}

    def show(text: object) -> None:
        line = re.sub(r"((-I|-isystem[= ]?)\s*\S+\s+){2,}", "-I... ", str(text))  # a run of include folders
        for path, name in names.items():
            line = re.sub(rf"(?<!\w){re.escape(path)}", name, line)
        print("  ", line)

    object_file = next(folder.rglob("add2_generated_add2_kernel.cu.o"))
    script = object_file.with_name(object_file.name + ".Release.cmake")
    for path, name in names.items():
        print(f"{name} = {path}")
    print("1. find_package(CUDA): a module, not a compiler. It sets variables and defines cuda_add_library.")
    show(next(line for line in (folder / "CMakeCache.txt").read_text().splitlines() if "NVCC_EXECUTABLE" in line))
    print("2. CUDA_WRAP_SRCS: the template run_nvcc.cmake becomes a script for this one .cu. Written when configuring:")
    template = re.search(r'CUDA_make2cmake "(.*)/make2cmake.cmake"', script.read_text())[1]
    for path in (f"{template}/run_nvcc.cmake", script.with_name(f"{object_file.name}.cmake.pre-gen"), script):
        show(path)
    print("   in which these lines were filled in:")
    for name in ("source_file", "CUDA_NVCC_EXECUTABLE", "CUDA_NVCC_FLAGS", "nvcc_flags"):
        show("    " + re.search(rf"^set\({name} .*\)", script.read_text(), re.MULTILINE)[0])
    print("3. add_custom_command: ninja knows no compiler either, only this:")
    custom = next(line for line in done.stdout.splitlines() if "-P" in line and script.name in line)
    steps = [step for step in custom.split(" && ") if " -P " in step]
    show(steps[0])
    print("4. execute_process: the script, once more with verbose:BOOL=ON. First the dependencies, then the object:")
    loud = shlex.split(steps[0].replace("verbose:BOOL=OFF", "verbose:BOOL=ON"))
    said = subprocess.run(loud, cwd=object_file.parent, capture_output=True, text=True, check=True).stdout
    for line in said.splitlines():
        if Path(line.split(" ")[0]).name in ("nvcc", "cmake") and " -E " not in line:
            show(line)
    print("5. The rest is an ordinary library: c++ compiles the .cpp files and links.")
    for command in _commands(folder, env):
        if "add2_kernel.cu.o.Release.cmake" not in command:
            show(command)
    print("\nCMake's own CUDA language (the project's CMakeLists.txt) has neither script nor copy of flags:")
    configure = [cmake, "-S", ROOT, "-B", folder / "language", "--fresh", "-G", "Ninja", f"-DTORCH_DIR={TORCH}"]
    configure += ["-DADD2_WITH_CUDA=ON", f"-DCMAKE_CUDA_COMPILER={nvcc}"]
    subprocess.run(configure, env=env, capture_output=True, check=True)  # configured, not built
    for command in _commands(folder / "language", env):
        if "add2_kernel.cu" in command:  # the same .cu, and the link
            show(command)
    print(f"\nThe library: {folder / 'libadd2.so'}\nRun it: python3 time.py --library {folder / 'libadd2.so'}")
    return 0


def _commands(folder: Path, env: dict[str, str]) -> list[str]:
    """The commands of a build folder, as ninja lists them."""
    listing = ["ninja", "-C", folder, "-t", "commands", "add2"]
    found = subprocess.run(listing, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return [command.removeprefix(": && ").removesuffix(" && :") for command in found]


if __name__ == "__main__":
    sys.exit(cli.run(main))
