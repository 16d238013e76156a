"""Random kernels whose lanes part and meet again: lab/emulator counts as many requests as a simulation that runs all
lanes of a warp in step, with a mask of those that are active."""

import random
from dataclasses import dataclass

import pytest
import torch

from lab import emulator

pytestmark = pytest.mark.anywhere

KERNELS = 20
HELPER = "__device__ __noinline__ float helper(const float* x) { float s = x[0]; return s + x[9]; }\n"


@dataclass
class Number:
    """(a + factor * b + shift) % modulus, of two variables."""

    a: str
    b: str
    factor: int
    shift: int
    modulus: int

    def __str__(self):
        return f"({self.a} + {self.factor} * {self.b} + {self.shift}) % {self.modulus}"

    def of(self, lane):
        return (lane[self.a] + self.factor * lane[self.b] + self.shift) % self.modulus


class Program:
    """Statements as tuples: load, call, if, for, break, continue."""

    def __init__(self, seed):
        self.random, self.loads = random.Random(seed), 0
        self.body = self.block(3, ["t"])

    def number(self, names):
        a, b = self.random.choices(names, k=2)
        factor, shift = self.random.randrange(1, 4), self.random.randrange(5)
        return Number(a, b, factor, shift, self.random.choice((2, 3, 4, 5, 7)))

    def block(self, depth, names):
        return [self.statement(depth, names) for _ in range(self.random.randint(1, 3))]

    def statement(self, depth, names):
        kind = self.random.choices(("load", "if", "for", "break", "continue", "call"), (8, 4, 4, 1, 1, 1))[0]
        if depth == 0 or (kind in ("break", "continue") and len(names) == 1):
            kind = "load"
        if kind in ("load", "call"):
            self.loads += 1
            return kind, self.loads, list(names)
        if kind == "if":
            other = self.block(depth - 1, names) if self.random.random() < 0.5 else []
            return kind, self.number(names), self.block(depth - 1, names), other
        if kind == "for":
            name = f"i{len(names)}"
            return kind, self.number(names), name, self.block(depth - 1, [*names, name])
        return kind, self.number(names)

    # ---- As C++.

    def code(self, block):
        return "".join(self.line(*statement) for statement in block)

    def line(self, kind, what, *rest):
        if kind == "load":
            place = " + ".join(f"{name} * {3 + 2 * i}" for i, name in enumerate(rest[0]))
            return f"sum += x[{64 * what} + ({place}) % 61];\n"
        if kind == "call":
            return f"sum += helper(x + {64 * what} + {rest[0][-1]} % 7);\n"
        if kind == "if":
            return f"if ({what} == 0) {{\n{self.code(rest[0])}}} else {{\n{self.code(rest[1])}}}\n"
        if kind == "for":
            return f"for (int {rest[0]} = 0; {rest[0]} < {what}; ++{rest[0]}) {{\n{self.code(rest[1])}}}\n"
        return f"if ({what} == 0) {kind};\n"

    # ---- In step.

    def requests(self):
        self.count = 0
        self.run(self.body, [{"t": lane} for lane in range(32)])
        return self.count

    def run(self, block, lanes):
        """The lanes that come to the end, and those that went on by `continue`."""
        skipped = []
        for kind, what, *rest in block:
            if not lanes:
                break
            if kind in ("load", "call"):
                self.count += 1 if kind == "load" else 2
            elif kind == "for":
                self.loop(what, *rest, lanes)
            else:
                some = [lane for lane in lanes if what.of(lane) == 0]
                lanes = [lane for lane in lanes if what.of(lane) != 0]
                if kind == "if":
                    for part, active in ((rest[0], some), (rest[1], lanes)):
                        ended, went_on = self.run(part, active)
                        skipped += went_on
                        some, lanes = (ended, lanes) if active is some else (some, ended)
                    lanes = some + lanes
                elif kind == "continue":
                    skipped += some
        return lanes, skipped

    def loop(self, limit, name, body, lanes):
        ends = {id(lane): limit.of(lane) for lane in lanes}
        for lane in lanes:
            lane[name] = 0
        while lanes := [lane for lane in lanes if lane[name] < ends[id(lane)]]:
            ended, went_on = self.run(body, lanes)
            lanes = ended + went_on
            for lane in lanes:
                lane[name] += 1


@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (8, 10, 32))])
def test_requests_of_lanes_that_part(emulator_cache, tmp_path, seed):
    programs = [Program(100 * seed + i) for i in range(KERNELS)]
    source = tmp_path / "random.cu"
    source.write_text(
        HELPER
        + "".join(
            f"__global__ void kernel_{i}(float* y, const float* x) {{\nconst int t = threadIdx.x;\nfloat sum = 0;\n"
            f"{program.code(program.body)}y[t] = sum;\n}}\n"
            for i, program in enumerate(programs)
        )
    )
    kernels = emulator.load(source)
    x = torch.ones(64 * max(program.loads for program in programs) + 100)
    found = []
    for i in range(KERNELS):
        report = emulator.run(getattr(kernels, f"kernel_{i}")[1, 32], emulator.out(torch.empty(32)), x)
        assert not report.is_wrong(), report
        found.append(report.launches[0].load_requests)
    assert found == [program.requests() for program in programs]
    assert max(found) > 20
