"""Surgery on a model: an Int4Linear in place of each nn.Linear that fits."""

from collections.abc import Iterable

from int4_layer import Int4Linear
from torch import nn


def replace_linear_layers(model: nn.Module, skip: str | Iterable[str] = ()) -> dict[str, str]:
    """Put an Int4Linear in place of each nn.Linear of a model, except those in skip, or that do not fit.

    skip: a name or several. Returns the names of the layers that stay as they are, each with the reason. A layer with
    several names is still one layer afterwards. The model changes only after all weights have been rounded.
    """
    skip = {skip} if isinstance(skip, str) else set(skip)
    layers = {name: each for name, each in model.named_modules(remove_duplicate=False) if isinstance(each, nn.Linear)}
    if lost := skip - layers.keys():
        raise ValueError(f"int4_linear: no linear layer is called {', '.join(sorted(lost))}")
    users = {
        weight: name
        for name, module in model.named_modules()
        if not isinstance(module, nn.Linear)
        for weight in module.parameters(recurse=False)
    }
    kept: dict[nn.Module, str] = {}
    new: dict[nn.Module, Int4Linear] = {}
    for name, layer in layers.items():
        parent = model.get_submodule(name.rpartition(".")[0])
        hooks = [key for key, value in vars(layer).items() if key.endswith("_hooks") and value]
        if name in skip:
            kept[layer] = "named in skip"
        elif not name:
            kept[layer] = "it is the model itself"
        elif type(layer) is not nn.Linear:
            kept[layer] = f"a {type(layer).__name__} may be used in other ways than nn.Linear"
        elif hooks:  # weight_norm and prune use them, too
            kept[layer] = f"it has {hooks[0].strip('_')}, which would be lost"
        elif "forward" in vars(layer):  # set on the layer itself, as libraries that wrap a model do
            kept[layer] = "it has a forward of its own, which would be lost"
        elif others := layer.state_dict().keys() - {"weight", "bias"}:
            kept[layer] = f"it has {min(others)}, which would be lost"
        elif isinstance(parent, nn.TransformerEncoderLayer):
            kept[layer] = "nn.TransformerEncoderLayer reads its weight"
        elif layer.weight in users:
            kept[layer] = f"it shares its weight with {users[layer.weight]}"
        elif layer not in kept and layer not in new:
            try:
                new[layer] = Int4Linear.from_linear(layer)
            except ValueError as error:
                kept[layer] = str(error)
    for name, layer in layers.items():
        if layer not in kept:
            model.set_submodule(name, new[layer])
    return {name: kept[layer] for name, layer in layers.items() if layer in kept}
