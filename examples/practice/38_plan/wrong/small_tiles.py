# Right, but slow: small tiles keep all multiprocessors busy, and take longest for each number.
# check says: times as long as the best plan
def plan(m: int, n: int, k: int) -> tuple[int, int, int]:
    return 64, 64, 1
