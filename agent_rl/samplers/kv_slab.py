"""KV cache of a running batch: one row a trajectory, each with its own length.

Rows are left-aligned and a row's new tokens are written at its own length, so trajectories join and leave
between two tokens without moving anybody else's cache. A row that leaves is copied out and copied in again when its
trajectory comes back with an observation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import Cache, PretrainedConfig

from agent_rl import attention
from agent_rl.errors import ConfigError
from agent_rl.samplers.packed import PackedPass, plan_pass


def check_attention(config: PretrainedConfig) -> None:
    """Raise ConfigError for a model with a layer that keeps anything but all keys and values of its past, or with
    another attention than ours, which would not know whose tokens a pass holds."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ConfigError(
            f"sampler.kind=hf serves models with full attention in every layer; {config.model_type} also has "
            f"{sorted(kinds - {'full_attention'})}. Give another model.path"
        )
    if config._attn_implementation != attention.NAME:
        raise ConfigError(
            f"sampler.kind=hf needs attn_implementation={attention.NAME}, but the model has "
            f"{config._attn_implementation}; call model.set_attn_implementation(attention.register())"
        )


class KVSlab(Cache):
    """Preallocated keys and values [rows, kv_heads, columns, head_dim] of every layer; columns grow as needed.

    ``plan`` says what the next forward pass is for, and ``advance`` that it is over. ``update`` then returns a whole
    layer of the slab: ``packed_attention`` finds its rows in it.
    """

    def __init__(self, config: PretrainedConfig, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(layers=[])
        self._layers = int(config.num_hidden_layers)
        self._heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        self._dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        self._dtype, self._device, self._rows = dtype, device, rows
        self._data = self._allocate(256)
        self.lengths = [0] * rows
        self._index = torch.arange(rows, device=device)
        self._plan: PackedPass | None = None

    def _allocate(self, columns: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        shape = (self._rows, self._heads, columns, self._dim)
        return [
            (
                torch.zeros(shape, dtype=self._dtype, device=self._device),
                torch.zeros(shape, dtype=self._dtype, device=self._device),
            )
            for _ in range(self._layers)
        ]

    def reserve(self, columns: int) -> None:
        """Make room for ``columns`` tokens in every row."""
        have = self._data[0][0].shape[2]
        if columns <= have:
            return
        # A layer at a time: the old and the new slab never exist whole beside each other.
        wanted = max(columns, 2 * have)
        shape = (self._rows, self._heads, wanted, self._dim)
        for layer, pair in enumerate(self._data):
            larger = tuple(torch.zeros(shape, dtype=self._dtype, device=self._device) for _ in pair)
            for new, old in zip(larger, pair, strict=True):
                new[:, :, :have] = old
            self._data[layer] = (larger[0], larger[1])

    def plan(self, running: int, joining: Sequence[tuple[int, int]]) -> PackedPass:
        """Next: one token for each of the first ``running`` rows, and ``joining`` (row, new tokens) of later ones."""
        plan = plan_pass(self.lengths, running, joining, self._device)
        self.reserve(max([plan.width, *(segment.start + segment.count for segment in plan.segments)]))
        self._plan = plan
        return plan

    def advance(self) -> None:
        """The forward pass is over: its rows have grown."""
        plan, self._plan = self._plan, None
        assert plan is not None
        for row in range(plan.running):
            self.lengths[row] += 1
        for segment in plan.segments:
            self.lengths[segment.row] += segment.count

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        plan, layer = self._plan, self._data[layer_idx]
        assert plan is not None
        running = plan.running
        for slab, new in zip(layer, (key_states[0], value_states[0]), strict=True):
            slab[self._index[:running], :, plan.columns] = new[:, :running].transpose(0, 1)
            for part in plan.segments:
                slab[part.row, :, part.start : part.start + part.count] = new[:, part.at : part.at + part.count]
        return layer

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # positions are given with every pass

    def save(self, row: int) -> torch.Tensor:
        """Copy of a row [layers, 2, kv_heads, length, head_dim]."""
        length = self.lengths[row]
        shape = (self._layers, 2, self._heads, length, self._dim)
        kept = torch.empty(shape, dtype=self._dtype, device=self._device)
        for layer, (keys, values) in zip(kept, self._data, strict=True):
            layer[0], layer[1] = keys[row, :, :length], values[row, :, :length]
        return kept

    def load(self, row: int, kv: torch.Tensor) -> None:
        """Put a saved row back, at any row."""
        length = kv.shape[3]
        self.reserve(length)
        for (keys, values), (k, v) in zip(self._data, kv, strict=True):
            keys[row, :, :length] = k
            values[row, :, :length] = v
        self.lengths[row] = length

    def clear(self, row: int) -> None:
        self.lengths[row] = 0

    def move(self, source: int, target: int) -> None:
        """Move a row, so that the running rows stay the first ones."""
        length = self.lengths[source]
        for keys, values in self._data:
            keys[target, :, :length] = keys[source, :, :length]
            values[target, :, :length] = values[source, :, :length]
        self.lengths[target], self.lengths[source] = length, 0
