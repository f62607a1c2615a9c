"""An independent count of the bytes that a forward reads and writes, by storage.

A TorchDispatchMode that looks at every operation: which bytes of parameters and of cache rows go
in, which rows are written. It shares no code with what the engine counts. Activations are left
out; an embedding look-up counts its rows; an operation that only makes a view, or that asks for a
size, reads nothing.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SLAB_DIMS = 5  # `[L, B, H, capacity, D]`: nothing else that a forward makes empty has as many


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def num_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class Tally(TorchDispatchMode):
    """Adds up until `reset`."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.parameters = {storage(p) for p in model.parameters()}
        self.rows: dict[int, torch.Tensor] = {}  # kept alive: an address stands for one tensor
        self.reset()

    def reset(self) -> None:
        self.weight_bytes_read = self.kv_bytes_read = self.kv_bytes_written = 0

    def hold(self, tensor: torch.Tensor) -> None:
        """From now on the bytes of this tensor's storage are cache rows."""
        self.rows[storage(tensor)] = tensor

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        written = self._written(func, args)
        outs = {storage(t) for t in tree_leaves(out) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves((args, kwargs)):
            if not isinstance(tensor, torch.Tensor) or any(tensor is w for w in written):
                continue
            if (not written and storage(tensor) in outs) or func is torch.ops.aten.size.int:
                continue  # a view, or only a size
            if storage(tensor) in self.parameters:
                self.weight_bytes_read += self._weight_bytes(func, tensor, args)
            elif storage(tensor) in self.rows:
                self.kv_bytes_read += num_bytes(tensor)
        for tensor in written:
            if storage(tensor) in self.rows:
                self.kv_bytes_written += num_bytes(tensor)
        if isinstance(out, torch.Tensor) and out.dim() == SLAB_DIMS and "empty" in str(func):
            self.hold(out)
        return out

    @staticmethod
    def _written(func, args) -> list[torch.Tensor]:
        """The arguments that the operation's schema marks as written."""
        schema = func._schema.arguments
        return [
            arg
            for arg, about in zip(args, schema, strict=False)
            if about.alias_info is not None and about.alias_info.is_write
        ]

    @staticmethod
    def _weight_bytes(func, weight: torch.Tensor, args) -> int:
        if "embedding" in str(func):
            ids = args[1]
            return ids.numel() * weight.shape[1] * weight.element_size()
        return num_bytes(weight)
