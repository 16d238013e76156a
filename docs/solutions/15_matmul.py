"""Solutions of docs/15_matmul.md. 3 is a change of the code."""

from workshop import main


def exercise_1():
    """Arrivals at `empty`: every warp that reads what a block has loaded for all four blocks. Bytes at `full`: each
    block loads a quarter of A's tile, 256 rows of 64 columns, for all."""
    warps = [(block, warp) for block in range(4) for warp in range(8)]
    tile = 256 * 64 * 2
    others = tile - tile // 4
    print(f"{len(warps)} arrivals, {others // 1024} KB from other blocks")
    assert (len(warps), others) == (32, 24 * 1024)


def exercise_2():
    """What load_b computes for lane 29, and the swizzle of piece_of."""
    block, line = 29 // 8, 29 % 8
    row, piece = 32 + block // 2 * 8 + line, 4 + block % 2
    place = piece ^ row % 8
    print(f"row {row}, piece {piece}, at place {place}")
    assert (row, piece, place) == (45, 5, 0)


main()
