"""torchvision 0.29.1: pip install torchvision."""

import torch
import torchvision  # noqa: F401 (registers the operators)

from lab.referee import Operator


def roi_inputs(device):
    boxes = [[0.5, 1.0, 5.0, 6.0], [1.0, 0.0, 4.5, 3.0], [2.0, 2.0, 6.5, 6.0]]
    index = torch.tensor([0, 1, 0], device=device)
    return torch.randn(2, 3, 8, 8, device=device), index, torch.tensor(boxes, device=device)


def roi_align(x, index, boxes):
    """torchvision takes the number of a box's image and its corners as one row of floats."""
    rois = torch.cat([index.unsqueeze(1).to(boxes.dtype), boxes], dim=1)
    return torch.ops.torchvision.roi_align(x, rois, 1.0, 2, 2, 2, False)


def roi_align_by_torch(x, index, boxes):
    """2 x 2 bins per box, each the mean of 2 x 2 bilinear samples."""
    left, top, right, bottom = boxes.unbind(1)
    steps = (torch.arange(4, device=x.device) + 0.5) / 4
    at_x = (left[:, None] + (right - left).clamp(min=1)[:, None] * steps).clamp(0, x.shape[3] - 1)
    at_y = (top[:, None] + (bottom - top).clamp(min=1)[:, None] * steps).clamp(0, x.shape[2] - 1)
    return torch.nn.functional.avg_pool2d(bilinear(x[index], at_x[:, None, :], at_y[:, :, None]), 2)


def bilinear(x, at_x, at_y):
    """x [n, channels, height, width] at the places at_x, at_y [n, rows, columns] (or broadcast to that)."""
    height, width = x.shape[2:]
    at_x, at_y = torch.broadcast_tensors(at_x, at_y)
    grid = torch.stack([at_x * 2 / (width - 1) - 1, at_y * 2 / (height - 1) - 1], dim=-1)
    return torch.nn.functional.grid_sample(x, grid, align_corners=True)


align = Operator(
    "torchvision::roi_align",
    call=roi_align,
    reference=roi_align_by_torch,
    inputs=roi_inputs,
    gradients=(0,),
    sizes={"channels": [(0, 1)], "boxes": [(1, 0), (2, 0)]},
)


def deform_inputs(device):
    """x, weight, offset, mask, bias: a kernel of 2 x 2 on 2 images of 3 channels."""
    shapes = (2, 3, 6, 6), (4, 3, 2, 2), (2, 8, 5, 5), (2, 4, 5, 5), (4,)
    return [0.4 * torch.randn(shape, device=device) for shape in shapes]


def deform_conv2d_by_torch(x, weight, offset, mask, bias):
    """Sample x at each of the 4 places of the kernel, moved by `offset`, then multiply by `weight`."""
    height, width = x.shape[2:]
    rows = torch.arange(height - 1, device=x.device, dtype=x.dtype)
    columns = torch.arange(width - 1, device=x.device, dtype=x.dtype)
    result = bias[:, None, None]
    for k in range(4):
        at_y = rows[:, None] + k // 2 + offset[:, 2 * k]
        at_x = columns + k % 2 + offset[:, 2 * k + 1]
        sample = bilinear(x, at_x, at_y) * mask[:, k : k + 1]
        result = result + torch.einsum("oc,bchw->bohw", weight[:, :, k // 2, k % 2], sample)
    return result


deform_conv2d = Operator(
    "torchvision::deform_conv2d",
    call=lambda *tensors: torch.ops.torchvision.deform_conv2d(*tensors, 1, 1, 0, 0, 1, 1, 1, 1, True),
    reference=deform_conv2d_by_torch,
    inputs=deform_inputs,
    gradients=(0, 1, 2, 3, 4),
    sizes={"input channels": [(0, 1), (1, 1)], "output channels": [(1, 0), (4, 0)]},
)


def nms_by_torch(boxes, scores, threshold):
    """Of boxes that overlap, keep that with the highest score."""
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    overlap = shared / (area[:, None] + area - shared)
    kept = []
    for i in scores.argsort(descending=True, stable=True).tolist():
        if not any(overlap[i, j] > threshold for j in kept):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.long, device=boxes.device)


def nms_inputs(device):
    corner = 4 * torch.rand(12, 2, device=device)
    boxes = torch.cat([corner, corner + 1 + torch.rand(12, 2, device=device)], 1)
    return boxes, torch.rand(12, device=device), 0.3


nms = Operator(
    "torchvision::nms",
    reference=nms_by_torch,
    inputs=nms_inputs,
    sizes={"boxes": [(0, 0), (1, 0)]},
)
