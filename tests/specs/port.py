"""The operators of the ports, blend and points. PYTHONPATH has to have both packages, built."""

import blend as blend_package
import points
import torch

from lab.referee import Operator


def blend_by_torch(a, b, mask, alpha):
    mixed = alpha * a + (1 - alpha) * b
    return mixed if mask is None else torch.where(mask, mixed, a)


blend = Operator(
    "blend::blend",
    call=blend_package.blend,
    inputs=lambda device: (
        torch.randn(4, 3, device=device),
        torch.randn(4, 3, device=device),
        torch.rand(4, 3, device=device) < 0.5,
        0.3,
    ),
    reference=blend_by_torch,
    gradients=(0, 1),
    sizes={"rows": [(0, 0), (1, 0), (2, 0)], "columns": [(0, 1), (1, 1), (2, 1)]},
    wrong={
        "b has another shape": {1: lambda b: b[1:]},
        "b has another dtype": {1: lambda b: b.double()},
        "mask has another dtype": {2: lambda mask: mask.float()},
        "expected a number": {3: torch.tensor(0.1)},
    },
)
sum_list = Operator(
    "blend::sum_list",
    call=blend_package.sum_list,
    inputs=lambda device: ([torch.randn(4, 3, device=device) for _ in range(3)],),
    reference=sum,
    gradients=(0,),
    wrong={
        "another shape": {0: lambda tensors: [tensors[0], tensors[1][1:]]},
        "another dtype": {0: lambda tensors: [tensors[0], tensors[1].double()]},
        "at least one tensor": {0: []},
    },
)


def group_by_torch(features, index):
    batch = torch.arange(len(features), device=index.device)[:, None, None]
    return features[batch, :, index.long()].movedim(3, 1)


group = Operator(
    "points::group",
    call=points.group,
    inputs=lambda device: (
        torch.randn(2, 5, 4, device=device),
        torch.tensor([[[0, 2], [1, 2], [0, 0]], [[2, 3], [1, 0], [2, 1]]], dtype=torch.int32, device=device),
    ),
    reference=group_by_torch,
    gradients=(0,),
    sizes={"channels": [(0, 1)], "centers": [(1, 1)]},
    bounds={1: (0, 3)},
    wrong={"shape": {0: lambda features: features[0]}, "int32": {1: lambda index: index.long()}},
)


def cloud(device, *counts):
    """Random points: no two have the same distance from a third one."""
    return tuple(torch.rand(2, n, 3, device=device) for n in counts)


def nearest_by_torch(xyz, centers):
    """Detached: the package says that its searches have no gradient, and they raise no error where one is asked for."""
    xyz, centers = xyz.detach(), centers.detach()
    found = (centers[:, :, None] - xyz[:, None]).square().sum(-1).sort(dim=-1, stable=True)
    return found.values[..., :3], found.indices[..., :3].int()


def ball_by_torch(xyz, centers, radius, count):
    """The first points that are near; missing ones repeat the first, and where there is none they are 0. A distance
    that is NaN counts as near, as in the code that was ported."""
    near = ~((centers[:, :, None] - xyz[:, None]).square().sum(-1) >= radius**2)
    n = xyz.shape[1]
    order = torch.where(near, torch.arange(n, device=xyz.device), n).sort(dim=-1).values
    order = torch.nn.functional.pad(order, (0, count), value=n)[..., :count]
    order = torch.where(order == n, order[..., :1], order)
    return torch.where(order == n, 0, order).int()


def farthest_by_torch(xyz, count):
    """Point 0, then always the one that is farthest from those already chosen."""
    chosen = torch.zeros(len(xyz), 1, dtype=torch.long, device=xyz.device)
    distance = xyz.new_full(xyz.shape[:2], torch.inf)
    for _ in range(count - 1):
        last = xyz.gather(1, chosen[:, -1:, None].expand(-1, -1, 3))
        distance = torch.minimum(distance, (xyz - last).square().sum(-1))
        chosen = torch.cat([chosen, distance.argmax(-1, keepdim=True)], 1)
    return chosen.int()


nearest = Operator(
    "points::nearest",
    call=points.nearest,
    inputs=lambda device: cloud(device, 7, 4),
    reference=nearest_by_torch,
    sizes={"centers": [(1, 1)]},
    wrong={"at least 3": {0: lambda xyz: xyz[:, :2].contiguous()}},
)
ball = Operator(
    "points::ball",
    call=points.ball,
    inputs=lambda device: (*cloud(device, 7, 4), 0.6, 5),
    reference=ball_by_torch,
    sizes={"centers": [(1, 1)]},
    wrong={"centers": {1: lambda centers: centers.double()}},
)
farthest = Operator(
    "points::farthest",
    call=points.farthest,
    inputs=lambda device: (*cloud(device, 7), 4),
    reference=farthest_by_torch,
    sizes={},
    wrong={"count": {1: 8}},
)
