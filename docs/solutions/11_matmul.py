"""Solutions of docs/11_matmul.md."""

from workshop import main


def exercise_1():
    """Bytes from L2 per operation: a tile of 128 x 128, and one of 128 x 256 of which a block loads half of B."""

    def bytes_per_operation(height, width, share=1):
        return 2 * (height + width / share) / (2 * height * width)  # for each column of A and B

    small, shared = bytes_per_operation(128, 128), bytes_per_operation(128, 256, share=2)
    print(f"1/{1 / small:.0f} and 1/{1 / shared:.0f} bytes per operation")
    assert (small, shared) == (1 / 64, 1 / 128)


def exercise_2():
    """Arrivals at `empty`: every warp that reads what a block has loaded for all four blocks. Bytes at `full`: each
    block loads a quarter of B's tile, 256 rows of 64 columns, for all."""
    warps = [(block, warp) for block in range(4) for warp in range(8)]
    tile = 256 * 64 * 2
    others = tile - tile // 4
    print(f"{len(warps)} arrivals, {others // 1024} KB from other blocks")
    assert (len(warps), others) == (32, 24 * 1024)


main()
