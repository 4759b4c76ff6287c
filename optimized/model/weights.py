"""The model's weights as the operations want them, read straight from the released layout.

Knows released tensor names and which operation each tensor feeds; knows nothing about rows or caches. Every tensor of
the checkpoint is checked by name, shape and dtype before the first is used; on the CPU each matrix is dequantised once,
to a float64 operand (eight bytes a parameter: for models of test size).
Source: V4.1 model specification §2.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from optimized.ops.linear_weight import LinearWeight, prepare_dense_weight, prepare_fp4_weight, prepare_fp8_weight
from reference.spec.checkpoint_files import CheckpointFiles
from reference.spec.config import ModelConfig
from reference.spec.engram import EngramLayout
from reference.spec.tensors import tensor_plan


@dataclass(frozen=True)
class HyperConnectionWeights:
    """fn [2C + C*C, C*D]; scale and base [2C + C*C], the three released scales repeated over pre, post and comb."""

    fn: LinearWeight
    scale: torch.Tensor
    base: torch.Tensor


@dataclass(frozen=True)
class CompressorWeights:
    """KV sources only. projection: [d, D] with ratio 1, else values and gates stacked [2 d, D]."""

    projection: LinearWeight
    norm: torch.Tensor
    index_key: LinearWeight
    index_key_norm: torch.Tensor


@dataclass(frozen=True)
class IndexQueryWeights:
    """Index sources only. query: [H_index * d_index, q_lora]; head_weight: [H_index, D]."""

    query: LinearWeight
    head_weight: LinearWeight


@dataclass(frozen=True)
class AttentionWeights:
    """One attention. wqkv_a: query latent rows, then window KV rows [q_lora + d, D]: both read one quantised input.
    wo_a: stack of o_groups matrices [o_lora, H*d / o_groups].
    """

    wqkv_a: LinearWeight
    q_norm: torch.Tensor
    wq_b: LinearWeight
    kv_norm: torch.Tensor
    sink: torch.Tensor
    wo_a: LinearWeight
    wo_b: LinearWeight
    compressor: CompressorWeights | None
    index_query: IndexQueryWeights | None


@dataclass(frozen=True)
class MoeWeights:
    """gate [E, D]; bias [E]; w13: stack of E matrices, gate rows then up rows [2 I, D]; w2: stack [D, I]."""

    gate: LinearWeight
    bias: torch.Tensor
    w13: LinearWeight
    w2: LinearWeight
    shared_w13: LinearWeight
    shared_w2: LinearWeight


@dataclass(frozen=True)
class EngramWeights:
    """Table codes [R, k] and scales [R, k/32] stay FP8; gate [C, D] is the product of query and key weight."""

    codes: torch.Tensor
    scales: torch.Tensor
    wkv: LinearWeight
    gate: torch.Tensor
    multipliers: torch.Tensor
    primes: torch.Tensor
    offsets: torch.Tensor


@dataclass(frozen=True)
class LayerWeights:
    """One backbone layer or one draft block."""

    attention_mix: HyperConnectionWeights
    attention_norm: torch.Tensor
    attention: AttentionWeights
    ffn_mix: HyperConnectionWeights
    ffn_norm: torch.Tensor
    moe: MoeWeights
    engram: EngramWeights | None


@dataclass(frozen=True)
class DraftWeights:
    """The DSpark module: blocks, context projection, norm of its head, Markov and confidence heads."""

    blocks: tuple[LayerWeights, ...]
    context_projection: LinearWeight
    context_norm: torch.Tensor
    norm: torch.Tensor
    markov_embed: torch.Tensor
    markov_head: LinearWeight
    confidence: LinearWeight


@dataclass(frozen=True)
class ModelWeights:
    """embed [V, D] bf16; head [V, D]."""

    embed: torch.Tensor
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: LinearWeight
    draft: DraftWeights | None


def load_weights(folder: str | Path, config: ModelConfig, device: torch.device) -> ModelWeights:
    """Read a checkpoint folder.

    Raises:
        CheckpointError: names the tensor and the file; nothing is half-loaded.
    """
    files = CheckpointFiles.open(folder, config)
    weights = _Reader(files, config, device).model()
    files.check_unchanged()
    return weights


def planned_bytes(config: ModelConfig) -> int:
    """Bytes of weights, token map and RoPE frequencies on the CPU, told from the configuration alone.

    Matrices and vectors are float64; embeddings and Engram tables stay as released; scales are folded into matrices.
    """
    total = 4 * config.qk_rope_head_dim + (8 * config.vocab_size if config.engram_layer_ids else 0)
    for name, spec in tensor_plan(config).items():
        if not spec.loaded or name.endswith("k_weight"):  # folded into q_weight
            continue
        if name.endswith(("embed.weight", "embed.scale")):
            total += spec.num_bytes
        elif name.endswith("_scale"):
            total += 8 * (config.hc_mult + 2) * config.hc_mult
        else:
            total += 8 * spec.num_parameters
    layers = EngramLayout.of(config).layers
    return total + sum(8 * (len(one.multipliers) + 2 * len(one.flat_offsets)) for one in layers)


class _Reader:
    """Builds each part from the tensors under a name prefix."""

    def __init__(self, files: CheckpointFiles, config: ModelConfig, device: torch.device) -> None:
        self._files = files
        self._config = config
        self._device = device
        self._engram = EngramLayout.of(config)

    def model(self) -> ModelWeights:
        config = self._config
        layers = tuple(
            self._layer(f"layers.{layer}.", config.n_routed_experts, layer) for layer in range(config.num_hidden_layers)
        )
        head = self._dense("head.weight")
        return ModelWeights(self._tensor("embed.weight"), layers, self._wide("norm.weight"), head, self._draft())

    def _draft(self) -> DraftWeights | None:
        blocks = self._config.num_nextn_predict_layers
        if not blocks:
            return None
        last = f"mtp.{blocks - 1}."
        return DraftWeights(
            tuple(self._layer(f"mtp.{block}.", self._config.dspark_n_routed_experts, None) for block in range(blocks)),
            self._linear("mtp.0.main_proj"),
            self._wide("mtp.0.main_norm.weight"),
            self._wide(last + "norm.weight"),
            self._tensor(last + "markov_head.embed.weight"),
            self._dense(last + "markov_head.head.weight"),
            self._dense(last + "confidence_head.proj.weight"),
        )

    def _layer(self, prefix: str, experts: int, layer: int | None) -> LayerWeights:
        return LayerWeights(
            self._mix(prefix + "hc_attn"),
            self._wide(prefix + "attn_norm.weight"),
            self._attention(prefix + "attn.", layer),
            self._mix(prefix + "hc_ffn"),
            self._wide(prefix + "ffn_norm.weight"),
            self._moe(prefix + "ffn.", experts),
            self._engram_layer(layer) if layer in self._config.engram_layer_ids else None,
        )

    def _mix(self, stem: str) -> HyperConnectionWeights:
        copies = self._config.hc_mult
        counts = torch.tensor([copies, copies, copies * copies], device=self._device)
        scale = self._wide(stem + "_scale").repeat_interleave(counts)
        return HyperConnectionWeights(self._dense(stem + "_fn"), scale, self._wide(stem + "_base"))

    def _attention(self, prefix: str, layer: int | None) -> AttentionWeights:
        config = self._config
        return AttentionWeights(
            self._linear(prefix + "wq_a", prefix + "wkv"),
            self._wide(prefix + "q_norm.weight"),
            self._linear(prefix + "wq_b"),
            self._wide(prefix + "kv_norm.weight"),
            self._wide(prefix + "attn_sink"),
            self._output_groups(prefix + "wo_a"),
            self._linear(prefix + "wo_b"),
            self._compressor(prefix, layer) if layer is not None and config.is_kv_source(layer) else None,
            self._index_query(prefix + "indexer.") if layer is not None and config.is_index_source(layer) else None,
        )

    def _output_groups(self, stem: str) -> LinearWeight:
        """wo_a: bf16 values without input quantisation, whatever it is stored in."""
        values = self._values(stem).unflatten(0, (self._config.o_groups, -1))
        return prepare_dense_weight(values)

    def _values(self, stem: str) -> torch.Tensor:
        """A dense linear's values [N, K], bf16: E4M3 times a power of two fits bf16 exactly."""
        weight = self._tensor(stem + ".weight")
        if not self._config.quantized:
            return weight
        scale = torch.exp2(self._tensor(stem + ".scale").double() - 127)
        scale = scale.repeat_interleave(32, 0)[: weight.shape[0]].repeat_interleave(32, 1)[:, : weight.shape[1]]
        return (weight.view(torch.float8_e4m3fn).double() * scale).to(torch.bfloat16)

    def _compressor(self, prefix: str, layer: int) -> CompressorWeights:
        projection = [self._tensor(prefix + "compressor.wkv.weight")]
        if self._config.compress_ratios[layer] > 1:
            projection.append(self._tensor(prefix + "compressor.wgate.weight"))
        return CompressorWeights(
            prepare_dense_weight(torch.cat(projection)),
            self._wide(prefix + "compressor.norm.weight"),
            self._dense(prefix + "indexer.wk.weight"),
            self._wide(prefix + "indexer.k_norm.weight"),
        )

    def _index_query(self, prefix: str) -> IndexQueryWeights:
        return IndexQueryWeights(self._linear(prefix + "wq_b"), self._dense(prefix + "weights_proj.weight"))

    def _moe(self, prefix: str, experts: int) -> MoeWeights:
        return MoeWeights(
            self._dense(prefix + "gate.weight"),
            self._wide(prefix + "gate.bias"),
            self._experts(prefix, experts, ("w1", "w3")),
            self._experts(prefix, experts, ("w2",)),
            self._linear(prefix + "shared_experts.w1", prefix + "shared_experts.w3"),
            self._linear(prefix + "shared_experts.w2"),
        )

    def _experts(self, prefix: str, experts: int, parts: tuple[str, ...]) -> LinearWeight:
        """Stack of all experts; within one, the parts' rows one after another."""

        def stack(suffix: str) -> torch.Tensor:
            names = [[f"{prefix}experts.{expert}.{part}{suffix}" for part in parts] for expert in range(experts)]
            return torch.stack([torch.cat([self._tensor(name) for name in row]) for row in names])

        if not self._config.quantized:
            return prepare_dense_weight(stack(".weight"))
        return prepare_fp4_weight(stack(".weight"), stack(".scale"))

    def _engram_layer(self, layer: int | None) -> EngramWeights:
        if layer is None:
            raise ValueError("a draft block has no Engram")
        prefix, layout = f"layers.{layer}.engram.", self._engram.of_layer(layer)
        return EngramWeights(
            self._tensor(prefix + "embed.weight"),
            self._tensor(prefix + "embed.scale"),
            self._linear(prefix + "wkv"),
            self._wide(prefix + "q_weight") * self._wide(prefix + "k_weight"),
            torch.tensor(layout.multipliers, device=self._device),
            torch.tensor(layout.primes, device=self._device),
            torch.tensor(layout.flat_offsets, device=self._device),
        )

    def _linear(self, *stems: str) -> LinearWeight:
        """A dense linear; several stems give one matrix with their rows one after another (tiles stay whole)."""
        weight = torch.cat([self._tensor(stem + ".weight") for stem in stems])
        if not self._config.quantized:
            return prepare_dense_weight(weight)
        return prepare_fp8_weight(weight, torch.cat([self._tensor(stem + ".scale") for stem in stems]))

    def _dense(self, name: str) -> LinearWeight:
        return prepare_dense_weight(self._tensor(name))

    def _wide(self, name: str) -> torch.Tensor:
        """A vector (norm weight, bias, sink), float64 on the CPU."""
        return self._tensor(name).double()

    def _tensor(self, name: str) -> torch.Tensor:
        """The stored values: bf16, float32, or uint8 codes."""
        values = torch.from_numpy(np.array(self._files.read(name), order="C"))
        if self._files.spec(name).dtype == "BF16":
            values = values.view(torch.bfloat16)
        return values.to(self._device)
