"""2 x + 1 on a stream of the operator's own, in the order of the caller's stream"""

import torch
from refereed import grade_operator

THINK = {
    "values": "The result is 2 x + 1.",
    "current_stream": "Work on different streams has no order, unless one stream waits for the other.",
    "synchronization": "A stream can wait for another one while the CPU goes on.",
}


def grade(answer):
    return grade_operator(
        answer,
        "practice::line",
        device="cuda",
        inputs=lambda device: (torch.randn(3, 5, device=device),),
        reference=lambda x: 2 * x + 1,
        right=("current_stream", "values", "synchronization"),  # on another stream values are wrong by chance
        think=THINK,
    )
