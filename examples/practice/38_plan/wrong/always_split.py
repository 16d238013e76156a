# Right for one size: few rows. With many rows all parts must be added up.
# check says: to join the parts
def plan(m: int, n: int, k: int) -> tuple[int, int, int]:
    return 128, 128, 8
