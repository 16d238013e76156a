"""lab/emulator watches whole programs: their copies, their allocations, and what the host does to the GPU's memory."""

import re
from pathlib import Path

import pytest

from lab import emulator
from lab.emulator import __main__ as command

pytestmark = pytest.mark.anywhere

SOURCE = Path(__file__).parent / "emulator/programs.cu"
REFUSED = r"CUDA refuses {} \(invalid argument\): {}"
ATOMIC = r".*: each reads it, changes it and writes it back: use atomicAdd\(\) or another atomic"
# name: (kind, message)
FAULTS = {
    "copy_too_much": (
        "copy",
        REFUSED.format("cudaMemcpy", r"800 bytes, and the destination is the allocation of 400 bytes from line \d+"),
    ),
    "copy_over_variable": (
        "copy",
        REFUSED.format("cudaMemcpyToSymbol", "64 bytes, and the destination is the variable filter of 32 bytes"),
    ),
    "copy_too_far": (
        "copy",
        REFUSED.format("cudaMemcpyAsync", r"8 bytes, and .* of 400 bytes from line \d+, from byte 396 on"),
    ),
    "copy_to_host": (
        "copy",
        REFUSED.format("cudaMemcpy", "the destination is memory of the host, and cudaMemcpyHostToDevice takes .*GPU"),
    ),
    "copy_from_gpu": (
        "copy",
        REFUSED.format("cudaMemcpy", "the source is memory of the GPU, and cudaMemcpyHostToDevice takes .*host"),
    ),
    "copy_rows": ("copy", REFUSED.format("cudaMemcpy2D", "rows of 8 bytes, and a pitch of 4 bytes")),
    "copy_after_free": (
        "copy",
        REFUSED.format("cudaMemcpy", r"the source is the allocation .*, which was freed in line \d+"),
    ),
    "set_host": ("copy", REFUSED.format("cudaMemset", "the destination is memory of the host")),
    "free_twice": (
        "free",
        REFUSED.format("cudaFree", r"the allocation of 8 bytes from line \d+ was freed in line \d+"),
    ),
    "free_the_middle": ("free", REFUSED.format("cudaFree", "the pointer is 4 bytes behind the beginning of the .*")),
    "free_host": ("free", REFUSED.format("cudaFree", r"the pointer does not come from cudaMalloc\(\)")),
    "read_by_host": ("host access", r"read of 4 bytes by the program on the CPU: element 99 of the allocation .*"),
    "write_by_host": ("host access", r"write of 4 bytes .*: element 0 .*: copy it with cudaMemcpy\(\)"),
    "read_freed_by_host": ("use after free", r"read of 4 bytes: element 1 of .*, which was freed in line \d+"),
    "kernel_after_free": ("use after free", r"write of 4 bytes: element 0 of .*, which was freed in line \d+"),
    "heap_use": ("use after free", r"read of 4 bytes: element 0 of .* 8 bytes .*, which was freed in line \d+"),
    "heap_free": ("free", r"the allocation of 8 bytes from line \d+ was freed in line \d+"),
    "past_end": ("out of bounds", r"write .* directly behind the end of the allocation of 400 bytes .*: element 100"),
    "variable_of_host": ("out of bounds", "read of 4 bytes in host_scale, a variable of the host, .*"),
    "read_of_next_turn": ("race", r"read .* touch element 0 of .* s .*: a __syncthreads\(\) between them is missing"),
    "plain_count": ("race", ATOMIC),
    "plain_most": ("race", ATOMIC),
    "started_too_late": ("race", r"atomic operation of 4 bytes and a write in line \d+ by block .*"),
    "started_without_barrier": ("race", r"atomic operation of 4 bytes and a write in line \d+ by thread .*"),
}


@pytest.fixture(scope="module")
def kernels(emulator_cache):
    return emulator.load(SOURCE)


def marked_line(name):
    lines = SOURCE.read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if re.search(rf"// FAULT {name}$", line))


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found_in_its_line(kernels, name):
    report = emulator.run(getattr(kernels, name))
    (fault,) = report.faults  # one, although x += 1 races twice
    assert (fault.kind, fault.line) == (FAULTS[name][0], marked_line(name)), report
    assert re.fullmatch(FAULTS[name][1], fault.message), fault.message
    is_of_host = name.startswith("free") or fault.kind in ("copy", "host access") or name == "read_freed_by_host"
    assert is_of_host != bool(fault.kernel)


def test_lines_where_memory_was_made_and_freed(kernels):
    report = emulator.run(kernels.free_twice)
    line = marked_line("free_twice")
    assert f"from line {line - 2} was freed in line {line - 1}" in report.faults[0].message


@pytest.mark.parametrize("order", ["forward", "random"])
def test_right_programs(kernels, order):
    report = emulator.run(kernels.right, order=order)
    assert not report.is_wrong(), report
    assert report.result == 1


def test_main_with_an_array_parameter(kernels):
    assert emulator.run(kernels.main).result == 0
    assert emulator.run(kernels.main, "3", "70").result == 70


def test_a_program_that_fails(kernels, capsys):
    assert command.main([str(SOURCE), "main", "text", "7"]) == 1
    assert "main returned 7" in capsys.readouterr().out
    assert command.main([str(SOURCE), "main"]) == 0


def test_objects_that_a_kernel_makes(kernels):
    report = emulator.run(kernels.shapes)
    assert not report.is_wrong(), report
    assert report.result == 2 * 7 * 7


def test_a_kernel_by_its_address_has_its_name(kernels):
    assert emulator.run(kernels.right).launches[0].kernel == "fill"


def test_a_function_whose_body_is_a_try_block(kernels):
    assert emulator.run(kernels.tries).result == 7


def test_equal_launches_are_one_table(kernels):
    text = str(emulator.run(kernels.right))
    assert text.count("count_after_flag  grid (2,1,1), block (32,1,1)  (3 equal launches)\n") == 1
    assert text.count("count_after_flag") == 1
