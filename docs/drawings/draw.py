"""Draws the schematic figures of the pages: `python3 docs/drawings/draw.py` writes each *.svg next to this file.

It writes SVG by hand, with no library: a figure is a few dozen boxes, lines and words, and drawing again must give the
same bytes. Each figure has a panel of its own behind it, and colours for light and dark mode. Widths are for a phone:
600 units across, so that the smallest words (20 units) are still 12 pixels high on a screen of 360.
"""

import html
from pathlib import Path

WIDTH, LEFT = 600, 24
# Okabe and Ito's colours, which colour-blind readers tell apart.
ORANGE, SKY, GREEN, BLUE, RED, PURPLE = "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
STYLE = """
text { font-family: system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; }
.code { font-family: ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; }
.head { font-weight: 600; }
.panel { fill: #ffffff; stroke: #d0d7de; }
.ink { fill: #1f2328; } .soft { fill: #59636e; } .line { stroke: #59636e; fill: none; } .tip { fill: #59636e; }
@media (prefers-color-scheme: dark) {
  .panel { fill: #161b22; stroke: #3d444d; }
  .ink { fill: #e6edf3; } .soft { fill: #a8b1bb; } .line { stroke: #a8b1bb; } .tip { fill: #a8b1bb; }
}
.black { fill: #000000; } .white { fill: #ffffff; }
"""


class Figure:
    """Shapes in the order in which they are drawn; svg() puts the panel behind them."""

    def __init__(self, title: str, height: int):
        self.title, self.height, self.shapes = title, height, []

    def text(self, x, y, words, size=22, style="ink", anchor="start"):
        place = f'x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}"'
        self.shapes.append(f'<text {place} class="{style}">{html.escape(words)}</text>')

    def box(self, x, y, width, height, colour, solid=False, corner=8, edge=2.5):
        opacity = 1 if solid else 0.14
        self.shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{corner}" fill="{colour}" '
            f'fill-opacity="{opacity}" stroke="{colour}" stroke-width="{edge}"/>'
        )

    def cell(self, x, y, width, height, colour):
        """A box without an edge of its own; the gap to its neighbour shows the panel."""
        self.shapes.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{colour}"/>')

    def line(self, *points, dashed=False):
        path = " ".join(f"{x},{y}" for x, y in points)
        dash = ' stroke-dasharray="7 6"' if dashed else ""
        self.shapes.append(f'<polyline points="{path}" class="line" stroke-width="2.5"{dash}/>')

    def arrow(self, *points):
        """A line that ends in a tip; the last stretch is horizontal or vertical."""
        self.line(*points)
        (x0, y0), (x, y) = points[-2:]
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        corners = [(x, y), (x - 11 * dx + 6 * dy, y - 11 * dy + 6 * dx), (x - 11 * dx - 6 * dy, y - 11 * dy - 6 * dx)]
        self.shapes.append(f'<polygon points="{" ".join(f"{a},{b}" for a, b in corners)}" class="tip"/>')

    def svg(self) -> str:
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" role="img">',
                f"<title>{html.escape(self.title)}</title>",
                f"<style>{STYLE}</style>",
                f'<rect x="1" y="1" width="{WIDTH - 2}" height="{self.height - 2}" rx="14" class="panel"/>',
                *self.shapes,
                "</svg>\n",
            ]
        )


def call() -> Figure:
    """The layers of a call, each with the file that it is in, and what one hands to the next."""
    figure = Figure("The layers of a call of add2: Python function, dispatcher, operator, launcher, kernel", 932)
    figure.text(LEFT, 44, "c = add2(a, b), from top to bottom", 26, "ink head")
    layers = [
        (
            BLUE,
            "Python function",
            ["add2/ops.py", "add2/shapes.py"],
            ["you call it; gradient, vmap,", "and the fake kernel"],
        ),
        (SKY, "Dispatcher", ["in torch"], ["finds the operator by its schema", "and by the tensors' device"]),
        (GREEN, "Operator", ["kernel/add2.cpp"], ["checks the tensors, allocates c,", "finds the current stream"]),
        (
            ORANGE,
            "Launcher",
            ["include/add2.h", "kernel/add2_kernel.cu"],
            ["plain C, no torch;", "picks the kernel and launches it"],
        ),
        (RED, "Kernel", ["kernel/add2_kernel.cuh"], ["c[i] = a[i] + b[i],", "thousands of threads at once"]),
    ]
    handed = [
        "tensors a, b",
        "the same, boxed: a stack of values",
        "pointers, n, dtype, stream",
        "a launch, queued on the stream",
    ]
    y, height, gap = 66, 116, 54
    for number, (colour, name, files, lines) in enumerate(layers):
        y += 46 if name == "Kernel" else 0
        figure.box(LEFT, y, WIDTH - 2 * LEFT, height, colour)
        figure.text(LEFT + 16, y + 33, name, 26, "ink head")
        for row, file in enumerate(files):
            figure.text(WIDTH - LEFT - 14, y + 32 + 26 * row, file, 20, "ink code" if "/" in file else "soft", "end")
        for row, words in enumerate(lines):
            figure.text(LEFT + 16, y + 69 + 29 * row, words, 22)
        if number < len(handed):
            end = y + height + gap + (46 if number == 3 else 0)
            figure.arrow((70, y + height), (70, end - 3))
            figure.text(88, y + height + 35, handed[number], 20, "soft")
        if number == 3:
            figure.line((LEFT, y + height + 54), (WIDTH - LEFT, y + height + 54), dashed=True)
            figure.text(WIDTH - LEFT, y + height + 36, "CPU", 20, "soft head", "end")
            figure.text(WIDTH - LEFT, y + height + 82, "GPU", 20, "soft head", "end")
            figure.text(88, y + height + 82, "the call returns before it has run", 20, "soft")
        y += height + gap
    return figure


def grid() -> Figure:
    """From the tensor to the thread: a grid of blocks, a block of warps, a warp of threads."""
    figure = Figure("Grid, blocks, warps and threads of add2 with 16 bytes a thread", 700)
    figure.text(LEFT, 44, "Who computes which part of c?", 26, "ink head")
    figure.text(LEFT, 76, "float32, 256 threads a block, 16 bytes a thread", 20, "soft")
    wide = WIDTH - 2 * LEFT

    def level(y, name, note, parts, colour, start, zoom=True):
        figure.text(LEFT, y, name, 24, "ink head")
        figure.text(WIDTH - LEFT, y, note, 20, "soft", "end")
        step = wide / len(parts)
        for index, words in enumerate(parts):
            x = round(LEFT + index * step, 1)
            chosen = index == start
            figure.box(x + 1.5, y + 14, round(step - 3, 1), 52, colour, solid=chosen, corner=3, edge=1.5)
            size = 22 if len(parts) < 8 else 20
            figure.text(round(x + step / 2, 1), y + 48, words, size, "black head" if chosen else "ink", "middle")
        if zoom:  # the chosen part is what the next row shows
            x = LEFT + start * step
            figure.line((round(x + 2, 1), y + 68), (LEFT, y + 128))
            figure.line((round(x + step - 2, 1), y + 68), (WIDTH - LEFT, y + 128))

    level(124, "Grid", "n / 1024 blocks, rounded up", ["block 0", "block 1", "block 2", "...", "last"], SKY, 1)
    level(284, "Block 1", "256 threads = 8 warps", [str(i) for i in range(8)], ORANGE, 2)
    level(444, "Warp 2 of it", "32 threads, one instruction", ["0", "1", "2", "3", "...", "29", "30", "31"], RED, 3)
    figure.text(LEFT, 604, "Thread 3", 24, "ink head")
    figure.text(WIDTH - LEFT, 604, "4 elements = 16 bytes of a, b and c", 20, "soft", "end")
    first = 1 * 1024 + (2 * 32 + 3) * 4
    for index in range(4):
        figure.box(LEFT + index * wide / 4 + 1.5, 618, wide / 4 - 3, 52, GREEN, corner=3, edge=1.5)
        figure.text(LEFT + (index + 0.5) * wide / 4, 652, f"c[{first + index}]", 22, "ink code", "middle")
    return figure


def loads() -> Figure:
    """Which thread of a warp reads which bytes, with 4 and with 16 bytes a thread."""
    figure = Figure("A warp's load with 4 bytes a thread is one 128-byte line, with 16 bytes a thread four lines", 660)
    figure.text(LEFT, 44, "One load of a warp: 32 threads", 26, "ink head")
    figure.text(LEFT, 76, "each row is a line of 128 bytes; numbers are threads", 20, "soft")
    wide = WIDTH - 2 * LEFT

    figure.text(LEFT, 126, "4 bytes a thread", 24, "ink head")
    figure.text(WIDTH - LEFT, 126, "1 line", 22, "ink", "end")
    for thread in range(32):
        x = LEFT + thread * wide / 32
        colour = RED if thread == 0 else (SKY, BLUE)[thread % 2]
        figure.cell(round(x + 0.5, 2), 142, round(wide / 32 - 1, 2), 48, colour)
    for thread in (0, 8, 16, 24, 31):
        x = LEFT + (thread + 0.5) * wide / 32
        figure.line((round(x, 2), 192), (round(x, 2), 200))
        figure.text(round(x, 2), 221, str(thread), 20, "ink", "middle")

    figure.text(LEFT, 282, "16 bytes a thread", 24, "ink head")
    figure.text(WIDTH - LEFT, 282, "4 lines", 22, "ink", "end")
    for thread in range(32):
        row, column = divmod(thread, 8)
        x = LEFT + column * wide / 8
        colour = RED if thread == 0 else (SKY, BLUE)[thread % 2]
        figure.cell(round(x + 0.5, 2), 298 + 54 * row, round(wide / 8 - 1, 2), 48, colour)
        shade = "white head" if colour == BLUE else "black head"
        figure.text(round(x + wide / 16, 2), 330 + 54 * row, str(thread), 22, shade, "middle")

    figure.text(LEFT, 556, "Under way for a and b, until they arrive:", 22)
    figure.text(LEFT, 592, "4 bytes a thread", 22)
    figure.text(WIDTH - LEFT, 592, "2 x 128 = 256 bytes a warp", 22, "ink", "end")
    figure.text(LEFT, 626, "16 bytes a thread", 22)
    figure.text(WIDTH - LEFT, 626, "2 x 512 = 1024 bytes a warp", 22, "ink", "end")
    return figure


def cache() -> Figure:
    """How a build is found again: its key, and the steps if no finished build has that key."""
    figure = Figure("The cache of builds: a finished build with this key is loaded, otherwise lock and build", 913)
    figure.text(LEFT, 44, "Build, or load what is there?", 26, "ink head")
    figure.box(LEFT, 66, WIDTH - 2 * LEFT, 203, BLUE)
    figure.text(LEFT + 16, 100, "The key: a hash of", 24, "ink head")
    parts = [
        ("sources", "their content, headers included"),
        ("flags", "the build's, and CXX, CXXFLAGS ..."),
        ("torch", "which one, which version"),
        ("compilers", "which c++, which nvcc"),
        ("GPUs", "the architectures to compile for"),
    ]
    for row, (name, content) in enumerate(parts):
        figure.text(LEFT + 16, 134 + 29 * row, name, 20, "soft")
        figure.text(LEFT + 132, 134 + 29 * row, content, 20)

    def step(y, words, colour, x=LEFT, width=320, more=""):
        figure.box(x, y, width, 76 if more else 56, colour)
        figure.text(x + 16, y + 36, words, 22, "ink head")
        if more:
            figure.text(x + 16, y + 62, more, 20, "soft")

    right = WIDTH - LEFT - 132
    figure.arrow((174, 269), (174, 318))
    step(321, "A finished build?", ORANGE, more="with this key")
    figure.arrow((344, 359), (right - 3, 359))
    figure.text(394, 347, "yes", 22, "ink head", "middle")
    figure.arrow((174, 397), (174, 446))
    figure.text(190, 429, "no", 22, "ink head")
    step(449, "Lock", PURPLE, more="others wait here")
    figure.arrow((174, 525), (174, 574))
    step(577, "Finished by now?", ORANGE, more="by another process")
    figure.line((344, 615), (right + 50, 615))
    figure.arrow((right + 50, 615), (right + 50, 400))
    figure.text(394, 603, "yes", 22, "ink head", "middle")
    figure.arrow((174, 653), (174, 702))
    figure.text(190, 685, "no", 22, "ink head")
    step(705, "Build", RED, more="compile and link")
    figure.arrow((174, 781), (174, 810))
    step(813, "Mark it as finished", RED, more="killed before: built again")
    figure.line((344, 851), (right + 100, 851))
    figure.arrow((right + 100, 851), (right + 100, 400))
    step(321, "Load", GREEN, x=right, width=132, more="and done")
    return figure


def waits() -> Figure:
    """Clock, host and GPU on a time axis, for each of the four synchronizations; simulated."""
    figure = Figure("Clock, host and GPU on a time axis, for each of the four synchronizations", 866)
    figure.text(LEFT, 44, "Two warm-up calls, then two timed ones", 26, "ink head")
    launch, kernel, left = 40, 90, 88
    for number, (before, after, name, reads) in enumerate(
        [
            (True, True, "before and after", "the kernel and its launch"),
            (True, False, "before only", "the launch"),
            (False, True, "after only", "at first, earlier calls, too"),
            (False, False, "neither", "the launch"),
        ]
    ):
        y = 88 + 176 * number
        figure.text(LEFT, y, name, 24, "ink head")
        figure.text(WIDTH - LEFT, y, reads, 20, "soft", "end")
        for row, label in enumerate(("clock", "host", "GPU")):
            figure.text(LEFT, y + 36 + 40 * row, label, 20)

        def draw(row, start, end, colour, solid=True, y=y):
            figure.box(left + start + 1.5, y + 16 + 40 * row, end - start - 3, 28, colour, solid, corner=3, edge=1.5)

        now = free = 0  # the host's time, and the time at which the GPU will have nothing to do
        for timed in (False, False, True, True):
            if timed and before and free > now:
                draw(1, now, free, ORANGE)
                now = free
            start = now
            draw(1, now, now + launch, BLUE)
            now += launch
            begin = max(now, free)
            free = begin + kernel
            draw(2, begin, free, GREEN, timed)
            if timed and after:
                draw(1, now, free, ORANGE)
                now = free
            if timed:
                draw(0, start, now, RED)
    x = LEFT
    for colour, solid, words, width in (
        (RED, True, "timed", 104),
        (BLUE, True, "launch", 112),
        (ORANGE, True, "wait", 92),
        (GREEN, True, "kernel", 112),
        (GREEN, False, "warm-up", 120),
    ):
        figure.box(x + 1.5, 776 + 36, 24, 24, colour, solid, corner=3, edge=1.5)
        figure.text(x + 34, 776 + 55, words, 20)
        x += width
    return figure


def reduction() -> Figure:
    """A row's sum from the thread to the cluster: what each level adds, and how it passes its numbers on."""
    figure = Figure("How a sum climbs from threads to a warp, a block and a cluster", 840)
    figure.text(LEFT, 44, "How the sum of a row climbs", 26, "ink head")
    wide = WIDTH - 2 * LEFT
    levels = [
        (GREEN, "Thread", "adds its elements in a register", ["x0", "x256", "x512", "..."], "+="),
        (RED, "Warp", "32 threads, five shuffles", ["0", "1", "2", "...", "31"], "__shfl_xor_sync"),
        (
            ORANGE,
            "Block",
            "up to 32 warps on one multiprocessor",
            ["warp 0", "warp 1", "...", "warp 7"],
            "shared memory",
        ),
        (SKY, "Cluster", "2 to 16 blocks, from sm_90 on", ["block 0", "block 1", "...", "block 7"], "each other's"),
    ]
    after = [
        "one number per thread",
        "one number per warp",
        "one number per block",
        "the sum of the row, in every thread",
    ]
    passed = ["", "", "__syncthreads()", "shared memory"]
    for number, (colour, name, note, parts, way) in enumerate(levels):
        y = 66 + 192 * number
        figure.box(LEFT, y, wide, 132, colour)
        figure.text(LEFT + 14, y + 32, name, 26, "ink head")
        figure.text(WIDTH - LEFT - 14, y + 32, note, 20, "soft", "end")
        step = (wide - 220) / len(parts)
        for index, words in enumerate(parts):
            x = round(LEFT + 12 + index * step, 1)
            figure.box(x, y + 56, round(step - 5, 1), 52, colour, corner=3, edge=1.5)
            figure.text(round(x + step / 2 - 2, 1), y + 90, words, 20, "ink", "middle")
        figure.text(WIDTH - LEFT - 14, y + (76 if passed[number] else 90), way, 20, "ink code", "end")
        figure.text(WIDTH - LEFT - 14, y + 104, passed[number], 20, "ink code", "end")
        figure.arrow((LEFT + 90, y + 134), (LEFT + 90, y + 184))
        figure.text(LEFT + 112, y + 168, after[number], 22)
    return figure


FIGURES = {"call": call, "grid": grid, "loads": loads, "cache": cache, "waits": waits, "reduction": reduction}

if __name__ == "__main__":
    for name, figure in FIGURES.items():
        path = Path(__file__).with_name(f"{name}.svg")
        path.write_text(figure().svg(), encoding="utf-8", newline="\n")
        print(path.name, path.stat().st_size, "bytes")
