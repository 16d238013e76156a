"""Writes text: a step for all rows is one CUDA graph, and the host reads tokens behind the GPU."""

import math
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from llama import Cache, Llama
from torch import Tensor


def greedy(logits: Tensor) -> Tensor:
    """argmax in two steps, over parts of a row and over the parts. On an H200 that saves 22 us of torch's argmax."""
    size = math.gcd(logits.shape[1], 512)
    best, found = logits.unflatten(1, (-1, size)).max(-1)
    part = best.argmax(-1, keepdim=True)
    return torch.add(found.gather(1, part), part, alpha=size)[:, 0]


def sampler(temperature: float) -> Callable[[Tensor], Tensor]:
    """Choose by chance."""

    def choose(logits: Tensor) -> Tensor:
        probabilities = (logits.float() / temperature).softmax(-1)
        # The largest p / e, with e of an exponential distribution, is a draw from p. Nothing waits for the host.
        return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(-1)

    return choose


def check_logits(logits: Tensor) -> None:
    """ValueError for NaN and infinity. It waits for the GPU, so steps do without it."""
    if not logits.isfinite().all():
        raise ValueError("logits are NaN or infinite: weights are, too, or they are too large for this dtype")


class Generator:
    """A model, a cache for batch texts of up to capacity tokens, and (on a GPU) a graph of one step."""

    def __init__(
        self, model: Llama, batch: int, capacity: int, cache_dtype=None, choose=greedy, kind: type[Cache] = Cache
    ) -> None:
        self.model, self.choose, self.capacity = model, choose, capacity
        device = model.embedding.device
        self.cache = kind(model.config, batch, capacity, cache_dtype or model.embedding.dtype, device)
        self.tokens = torch.zeros(batch, dtype=torch.int64, device=device)  # the last one of each row
        self.replay, self.behind = self.step, 0  # behind: steps in the GPU's queue when the host waits for a token
        if device.type == "cuda":
            stream = torch.cuda.Stream(device)
            stream.wait_stream(torch.cuda.current_stream(device))  # what is above has been queued there
            with torch.cuda.stream(stream):  # its device becomes the current one
                self.step()  # once without a graph: libraries allocate their workspaces, torch.compile compiles
            stream.synchronize()
            self.graph = torch.cuda.CUDAGraph(keep_graph=True)  # steps.py edits it
            with torch.cuda.graph(self.graph, stream=stream):
                self.step()
            self.replay, self.behind = self.graph.replay, 2

    @torch.no_grad()
    def step(self) -> None:
        """Each row's last token goes in, its next one comes out."""
        self.logits = self.model(self.tokens, self.cache)  # run.py checks the last ones
        self.tokens.copy_(self.choose(self.logits))
        self.cache.counts += 1

    @torch.no_grad()
    def read(self, prompts: list[list[int]]) -> None:
        """Each prompt by itself: then its bits do not depend on the others. Chooses the first new tokens."""
        found = [self.model(self.tokens.new_tensor(prompt), self.cache, i) for i, prompt in enumerate(prompts)]
        check_logits(logits := torch.cat(found))
        self.tokens.copy_(self.choose(logits))
        self.cache.set_lengths([len(prompt) for prompt in prompts])

    def write(self, count: int) -> Iterator[list[int]]:
        """Yield the token of each row, count times. The first one is there; each other takes a step."""
        is_cuda, device = self.tokens.is_cuda, self.tokens.device
        copies = torch.empty(count, len(self.tokens), dtype=torch.int64, pin_memory=is_cuda)
        events: list[torch.cuda.Event] = []
        for i in range(count + self.behind):
            if 0 < i < count:
                self.replay()
            if i < count:
                copies[i].copy_(self.tokens, non_blocking=True)
                if is_cuda:
                    events.append(torch.cuda.current_stream(device).record_event())
            if i >= self.behind:
                if is_cuda:
                    events.pop(0).synchronize()
                yield copies[i - self.behind].tolist()

    def generate(self, prompts: list[list[int]], count: int) -> Iterator[list[int]]:
        """Read and write. ValueError if a text would not fit, before anything is written."""
        longest = max(map(len, prompts))
        if len(prompts) != len(self.tokens) or not all(prompts):
            raise ValueError(f"expected {len(self.tokens)} prompts, none of them empty")
        size = self.model.config.vocab_size
        if wrong := [token for prompt in prompts for token in prompt if not 0 <= token < size]:
            raise ValueError(f"the prompt has token {wrong[0]}, expected 0 to {size - 1} (vocab_size is {size})")
        if longest + count - 1 > self.capacity:  # the last token is not read any more
            raise ValueError(f"{longest} tokens and {count} new ones: the cache has room for {self.capacity}")
        self.read(prompts)
        return self.write(count)

    def speed(self, context: int, count: int = 64) -> float:
        """Milliseconds of a step after a context of so many tokens; the cache has random numbers."""
        keys, values, *scales = self.cache.tensors
        for x in (keys, values):
            x.random_(-127, 128) if x.dtype == torch.int8 else x.normal_()
        for x in scales:
            x.fill_(0.01)  # then codes are numbers around 1, too
        times = []
        for _ in range(3):
            self.cache.set_lengths([context] * len(self.tokens))
            self.tokens.tolist()  # waits for the GPU
            start = time.perf_counter()
            steps = sum(1 for _ in self.write(min(count, self.capacity - context))) - 1
            times.append((time.perf_counter() - start) * 1e3 / steps)
        # NaN would be timed, too, and int4_linear computes it twice.
        assert all(x[:, :, :, context:].isfinite().all() for x in self.cache.tensors)
        return statistics.median(times)
