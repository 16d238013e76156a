"""Solutions of docs/10_transpose.md."""

from collections import Counter

from workshop import main


def turns(element_bytes, row_of_tile, place=lambda i, j: j):
    """Turns that shared memory needs while a warp reads a column of the tile: words of 4 bytes that differ and lie in
    the same of the 32 banks. place(i, j): where in its row element (i, j) is kept. The worst column counts."""
    worst = 0
    for j in range(32):
        words = {(i * row_of_tile + place(i, j)) * element_bytes // 4 for i in range(32)}
        worst = max(worst, *Counter(word % 32 for word in words).values())
    return worst


def exercise_1():
    """bfloat16: without padding, with one element, with two."""
    found = [turns(2, 32 + padding) for padding in (0, 1, 2)]
    print(f"   {found[0]}, {found[1]} and {found[2]} turns")
    assert found == [16, 2, 1]


def exercise_2():
    """Element (i, j) at place j xor i of its row: no padding, no conflict."""
    found = [turns(size, 32, lambda i, j: j ^ i) for size in (4, 2)]
    print(f"   float32: {found[0]} turn; bfloat16: {found[1]} turn; as it was: {turns(4, 32)} and {turns(2, 32)}")
    assert found == [1, 1]


main()
