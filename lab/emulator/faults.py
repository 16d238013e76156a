"""Sentences for the facts that the emulator has found: what was wrong, and the cure."""

from .report import show

OPERATIONS = ["__syncwarp", "__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync", "a vote"]
OPERATIONS += ["__match_any_sync", "__match_all_sync", *["__reduce_sync"] * 8, "mma.sync", "ldmatrix", "movmatrix"]
STATES = ["run", "wait at a barrier", "wait for other lanes", "wait in __activemask", "have ended"]
STATES_OF_ONE = ["runs", "waits at a barrier", "waits for other lanes", "waits in __activemask", "has ended"]
LIMITS = {
    "no threads": "a block of no threads",
    "no blocks": "a grid of no blocks: launch nothing if there is nothing to do",
    "threads": "{found:,} threads per block; at most {most:,}",
    "threads in x": "{found:,} threads per block in x; at most {most:,}",
    "threads in y": "{found:,} threads per block in y; at most {most:,}",
    "threads in z": "{found:,} threads per block in z; at most {most:,}",
    "blocks in x": "{found:,} blocks in x; at most {most:,}",
    "blocks in y": "{found:,} blocks in y; at most {most:,}",
    "blocks in z": "{found:,} blocks in z; at most {most:,}",
    "shared memory": "{found:,} bytes of shared memory; a block has at most {most:,}",
    "shared memory without permission": "{found:,} bytes of dynamic shared memory; more than {most:,} need "
    "cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) before the launch",
    "launch bounds": "{found:,} threads per block, and the kernel's __launch_bounds__ allow {most:,}",
    "cluster": "a cluster of {found} blocks, which needs a GPU: here one block runs at a time",
}


def sentence(facts: dict, names: list[str], items: list[int]) -> str:
    """The message of a fault. names, items: of the tensors by their labels, their arguments and bytes per element."""
    write = WRITERS.get(facts["kind"])
    return write(facts, names, items) if write else facts["kind"]


def plural(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def access(facts: dict) -> str:
    kind = facts.get("access") or "access"
    return f"{'atomic operation' if kind == 'atomic' else kind} of {plural(facts['bytes'], 'byte')}"


def region(facts: dict, names: list[str]) -> str:
    """argument 2, x: float32 [5]"""
    label = facts.get("label", -1)
    if 0 <= label < len(names):
        return names[label]
    name = facts["region"]
    if "made_by" in facts:
        where = f" from {facts['made_in']}" if "made_in" in facts else ""
        return f"the allocation of {plural(facts['size'], 'byte')}{where}"
    if facts["space"] == "shared" and name != "dynamic shared memory":
        return f"the shared array {name}"
    return name if " " in name else f"the variable {name}"


def element(facts: dict, items: list[int]) -> str:
    """Which element. Those of an allocation, which has no type, are as large as what is accessed."""
    label, offset, size = facts.get("label", -1), facts["offset"], facts["element"]
    if 0 <= label < len(items):
        size = items[label]
    elif "made_by" in facts:
        size = facts["bytes"]
        if offset % size:
            return f"byte {offset:,}"
    return f"element {offset // size:,}"


def out_of_bounds(facts: dict, names: list[str], items: list[int]) -> str:
    if "index" in facts:
        index = facts["index"]
        return f"index {index} is outside of the array {facts['type']}"
    if "local_of" in facts:
        return (
            f"{access(facts)} in the local memory of thread {facts['local_of']} of the block: pass values, not pointers"
        )
    if "variable" in facts:
        return (
            f"{access(facts)} in {facts['variable']}, a variable of the host, which a GPU cannot reach: "
            "declare it __device__ or __constant__, or pass its value"
        )
    if "type" in facts:
        return f"{facts['access']} of {facts['type']} outside of a local array, or of a struct"
    if "region" not in facts:
        return f"{access(facts)} at {facts['address']:#x}, far from every tensor, perhaps memory of the host"
    size, offset, what = facts["size"], facts["offset"], region(facts, names)
    if what == "dynamic shared memory":
        return (
            f"{access(facts)} at byte {offset:,} of dynamic shared memory, and the launch gave {plural(size, 'byte')}: "
            "pass more as the launch's third number"
        )
    if offset < 0:
        return f"{access(facts)}, {plural(-offset, 'byte')} before {what}"
    behind = offset - size
    if behind < 0:
        return f"{access(facts)} across the end of {what}"
    where = "directly behind" if behind == 0 else f"{plural(behind, 'byte')} behind"
    return f"{access(facts)} {where} the end of {what}: {element(facts, items)}"


def misaligned(facts: dict, _: list[str], __: list[int]) -> str:
    what = facts.get("type") or plural(facts["bytes"], "byte")
    return (
        f"{facts.get('access') or 'access'} of {what} at {facts['address']:#x}, which is no multiple of "
        f"{facts['alignment']}: a view such as x[1:] does not begin where a whole tensor does"
    )


def null(facts: dict, _: list[str], __: list[int]) -> str:
    what = facts.get("type") or plural(facts["bytes"], "byte")
    return f"{facts.get('access') or 'access'} of {what} through a null pointer (address {facts['address']:#x})"


def uninitialized(facts: dict, names: list[str], items: list[int]) -> str:
    which = f"{element(facts, items)} of {region(facts, names)}"
    if facts["space"] == "shared":
        return f"{access(facts)} that no thread of this block has written: {which}"
    return f"{access(facts)} that nothing has written: {which}"


def other_party(facts: dict) -> str:
    if facts.get("other_block") == facts.get("block"):
        return f"thread {show(facts['other_thread'])} of the same block"
    return f"block {show(facts['other_block'])}, thread {show(facts['other_thread'])}"


def host_access(facts: dict, names: list[str], items: list[int]) -> str:
    what = f"{element(facts, items)} of {region(facts, names)}"
    cure = ": copy it with cudaMemcpy()" if "made_by" in facts else ""
    who = "the program" if "made_by" in facts else "the launcher, which runs"
    return f"{access(facts)} by {who} on the CPU: {what} lies in the memory of the GPU{cure}"


def use_after_free(facts: dict, names: list[str], items: list[int]) -> str:
    what = f"{element(facts, items)} of {region(facts, names)}"
    return f"{access(facts)}: {what}, which was freed in {facts['other_place']}"


DIRECTIONS = ["cudaMemcpyHostToHost", "cudaMemcpyHostToDevice", "cudaMemcpyDeviceToHost", "cudaMemcpyDeviceToDevice"]


def copy(facts: dict, names: list[str], _: list[int]) -> str:
    """Of cudaMemcpy or cudaMemset, which CUDA refuses."""
    refused = f"CUDA refuses {facts['function']} (invalid argument): "
    if facts["why"] == "pitch":
        return refused + f"rows of {plural(facts['width'], 'byte')}, and a pitch of {plural(facts['pitch'], 'byte')}"
    end = f"the {facts['end']}"
    if facts["why"] == "size":
        rest = f", from byte {facts['offset']:,} on" if facts["offset"] else ""
        size = "" if "made_by" in facts else f" of {plural(facts['size'], 'byte')}"
        return refused + f"{plural(facts['bytes'], 'byte')}, and {end} is {region(facts, names)}{size}{rest}"
    if facts["why"] == "freed":
        return refused + f"{end} is {region(facts, names)}, which was freed in {facts['other_place']}"
    if facts["function"].startswith("cudaMemset"):
        return refused + f"{end} is memory of the host"
    is_host = facts["why"] == "host"
    is_and_asked = ("the host", "the GPU") if is_host else ("the GPU", "the host")
    direction = DIRECTIONS[facts["direction"]] if facts["direction"] < len(DIRECTIONS) else "the direction"
    return refused + f"{end} is memory of {is_and_asked[0]}, and {direction} takes memory of {is_and_asked[1]}"


def free(facts: dict, names: list[str], _: list[int]) -> str:
    is_in_kernel = "thread" in facts
    refused = "" if is_in_kernel else "CUDA refuses cudaFree (invalid argument): "
    if "region" not in facts:
        return refused + f"the pointer does not come from {'malloc() or new' if is_in_kernel else 'cudaMalloc()'}"
    what = region(facts, names)
    if facts.get("other_pc"):
        return refused + f"{what} was freed in {facts['other_place']}"
    if facts["offset"]:
        return refused + f"the pointer is {plural(facts['offset'], 'byte')} behind the beginning of {what}"
    return refused + f"{what} does not come from cudaMalloc()"


ARTICLES = {"read": "a read", "write": "a write", "atomic": "an atomic operation"}


def race(facts: dict, names: list[str], items: list[int]) -> str:
    what = f"{element(facts, items)} of {region(facts, names)}"
    where = f"{ARTICLES[facts['other_access']]} in {facts['other_place']}"
    if facts.get("is_update"):
        cure = "each reads it, changes it and writes it back: use atomicAdd() or another atomic"
    elif facts["other_block"] != facts["block"]:
        cure = "blocks run in any order: use atomics, another kernel, or __threadfence() and a flag"
    elif facts["is_same_warp"]:
        cure = "nothing orders lanes of a warp but __syncwarp()"
    else:
        cure = "a __syncthreads() between them is missing"
    return f"{access(facts)} and {where} by {other_party(facts)} touch {what} in any order: {cure}"


def same_value(facts: dict, names: list[str], items: list[int]) -> str:
    what = f"{element(facts, items)} of {region(facts, names)}"
    where = f"{ARTICLES[facts['other_access']]} in {facts['other_place']}"
    return (
        f"{access(facts)} and {where} by {other_party(facts)} touch {what} in any order, but its value stays the same"
    )


def missing_wait(facts: dict, names: list[str], items: list[int]) -> str:
    what = f"{element(facts, items)} of {region(facts, names)}"
    return (
        f"{access(facts)} of {what} before the copy of {facts['other_place']} has arrived: "
        "__pipeline_wait_prior(), and a barrier for the copies of other threads"
    )


def barrier(facts: dict, _: list[str], __: list[int]) -> str:
    if facts.get("is_deadlock"):
        return f"threads wait for each other forever: {positions(facts)}"
    if facts.get("is_two_places"):
        return f"threads of one warp wait in different lines, the other in {facts['other_place']}"
    missing = f"{facts['missing']:,} of {plural(facts['threads'], 'thread')} did not reach it"
    other = f", such as thread {show(facts['other_thread'])}" if "other_thread" in facts else ""
    return f"{missing}{other}: all threads of a block must reach a barrier"


def ended_early(facts: dict, _: list[str], __: list[int]) -> str:
    return (
        f"{facts['missing']:,} of {plural(facts['threads'], 'thread')} had ended before this barrier, in whole warps: "
        "a GPU lets it pass, CUDA leaves it undefined"
    )


def lanes_of(mask: int) -> str:
    lanes = [lane for lane in range(32) if mask >> lane & 1]
    if len(lanes) > 2 and lanes == list(range(lanes[0], lanes[-1] + 1)):
        return f"lanes {lanes[0]} to {lanes[-1]}"
    return ("lane " if len(lanes) == 1 else "lanes ") + ", ".join(map(str, lanes))


def mask(facts: dict, _: list[str], __: list[int]) -> str:
    what = OPERATIONS[facts["operation"]]
    named = f"the mask {facts['mask'] & 0xFFFFFFFF:#010x} of {what}"
    missing = lanes_of(facts["missing"])
    if facts["why"] == "own lane":
        return f"{named} does not name the lane that calls it, {missing}"
    if facts["why"] == "not there":
        return f"{named} names {missing}, which the block does not have, and a lane reads its value"
    if facts["why"] == "not named":
        return f"{what} reads the value of {missing}, which its mask does not name: the value is undefined"
    if facts["why"] == "ended":
        return f"{named} names {missing}, which did not take part"
    waits = "waits" if missing.startswith("lane ") else "wait"
    return f"{named} names {missing}, which {waits} elsewhere: {positions(facts)}"


def positions(facts: dict) -> str:
    """Where the threads of the block stand."""
    parts = []
    groups: dict[tuple[str, int], tuple[int, int]] = {}  # one line may have several addresses
    for place, state, count, first in facts["positions"]:
        total, least = groups.get((place, state), (0, first))
        groups[place, state] = total + count, min(least, first)
    for (place, state), (count, first) in groups.items():
        where = f" in {place}" if place else ""
        does = STATES_OF_ONE[state] if count == 1 else STATES[state]
        parts.append(f"{plural(count, 'thread')} ({first}{', ...' if count > 1 else ''}) {does}{where}")
    return "; ".join(parts)


def hang(facts: dict, _: list[str], __: list[int]) -> str:
    if "signal" in facts:
        return "a loop that touches no memory has run for half a second and has not ended"
    if "barriers" in facts:
        return (
            f"{facts['barriers']:,} barriers have opened, and no thread of the block has ended: {positions(facts)}. "
            "If the kernel needs so many, give run() a larger steps="
        )
    return (
        f"no thread of the block ended or passed a barrier in {facts['steps']:,} steps: {positions(facts)}. "
        "Blocks run one after the other here, so a block cannot wait for a later one"
    )


def launch(facts: dict, _: list[str], __: list[int]) -> str:
    why = LIMITS[facts["why"]].format(**facts)
    return f"CUDA refuses the launch of {facts['text'] or 'the kernel'} ({facts['error']}): {why}"


WRITERS = {
    "out of bounds": out_of_bounds,
    "misaligned": misaligned,
    "null pointer": null,
    "uninitialized": uninitialized,
    "host access": host_access,
    "use after free": use_after_free,
    "copy": copy,
    "free": free,
    "race": race,
    "same value": same_value,
    "missing wait": missing_wait,
    "barrier": barrier,
    "ended before a barrier": ended_early,
    "mask": mask,
    "undefined value": mask,
    "hang": hang,
    "launch": launch,
    "assert": lambda facts, _, __: f"the assertion `{facts['text']}` does not hold",
    "trap": lambda *_: "the kernel called __trap() or abort()",
    "division by zero": lambda *_: "an integer is divided by zero; a GPU goes on with any result",
    "stack overflow": lambda *_: "the thread's local memory is too large, or a recursion does not end",
    "crash": lambda facts, _, __: f"the thread crashed (signal {facts['signal']}) at {facts['address']:#x}",
    "needs a GPU": lambda facts, _, __: (
        f"{facts['text']} needs a GPU: the emulator has no such instruction or function"
    ),
    "not in a kernel": lambda facts, _, __: f"{facts['text']} outside of a kernel",
}
