"""KV cache of a running batch: one row a trajectory, each with its own length.

Rows are left-aligned and a row's new token is written at its own length, so trajectories join and leave
between two tokens without moving anybody else's cache. A row that leaves is copied out (`Stash`) and copied in
again when its trajectory comes back with an observation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import Cache, PretrainedConfig

from agent_rl.errors import ConfigError


@dataclass(slots=True)
class Stash:
    """A trajectory's cache between its turns: ``kv`` [layers, 2, kv_heads, L, head_dim] of its first L ids."""

    ids: list[int]
    kv: torch.Tensor


def check_attention(config: PretrainedConfig) -> None:
    """Raise ConfigError for a model with a layer that keeps anything but all keys and values of its past."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ConfigError(
            f"sampler.kind=hf serves models with full attention in every layer; {config.model_type} also has "
            f"{sorted(kinds - {'full_attention'})}. Give another model.path"
        )


class KVSlab(Cache):
    """Preallocated keys and values [rows, kv_heads, columns, head_dim] of every layer; columns grow as needed.

    Before each forward pass the sampler selects what it is for: ``select_decode(rows)`` (one new token for each
    of the first ``rows`` rows) or ``select_prefill(row, length)`` (several new tokens for one row). The
    attention mask is the sampler's business (it passes a 4-D one).
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
        self._decode_rows = 0
        self._prefill: tuple[int, int] | None = None
        self._columns = torch.zeros(0, dtype=torch.long, device=device)
        self._width = 0

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
        larger = self._allocate(max(columns, 2 * have))
        for (keys, values), (new_keys, new_values) in zip(self._data, larger, strict=True):
            new_keys[:, :, :have] = keys
            new_values[:, :, :have] = values
        self._data = larger

    def select_decode(self, rows: int) -> torch.Tensor:
        """Next: one token for each of the first ``rows`` rows. Returns the mask bool [rows, 1, 1, width]."""
        self._prefill, self._decode_rows = None, rows
        self._width = max(self.lengths[:rows]) + 1
        self.reserve(self._width)
        self._columns = torch.tensor(self.lengths[:rows], device=self._device)
        places = torch.arange(self._width, device=self._device)
        return (places[None, :] <= self._columns[:, None])[:, None, None, :]

    def select_prefill(self, row: int, count: int) -> torch.Tensor:
        """Next: ``count`` tokens for ``row``. Returns the causal mask bool [1, 1, count, length + count]."""
        length = self.lengths[row]
        self._prefill = (row, count)
        self.reserve(length + count)
        places = torch.arange(length + count, device=self._device)
        return (places[None, :] <= places[length:, None])[None, None]

    def advance(self) -> None:
        """The forward pass is over: the selected rows have grown."""
        if self._prefill is not None:
            row, count = self._prefill
            self.lengths[row] += count
        else:
            for row in range(self._decode_rows):
                self.lengths[row] += 1

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._data[layer_idx]
        if self._prefill is not None:
            row, count = self._prefill
            length = self.lengths[row]
            keys[row, :, length : length + count] = key_states[0]
            values[row, :, length : length + count] = value_states[0]
            return keys[row : row + 1, :, : length + count], values[row : row + 1, :, : length + count]
        rows = self._decode_rows
        keys[self._index[:rows], :, self._columns] = key_states[:, :, 0]
        values[self._index[:rows], :, self._columns] = value_states[:, :, 0]
        return keys[:rows, :, : self._width], values[:rows, :, : self._width]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.lengths[self._prefill[0]] if self._prefill is not None else self._width - 1

    def save(self, row: int) -> torch.Tensor:
        """Copy of a row [layers, 2, kv_heads, length, head_dim]."""
        length = self.lengths[row]
        return torch.stack([torch.stack((k[row, :, :length], v[row, :, :length])) for k, v in self._data])

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
