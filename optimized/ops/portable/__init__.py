"""Every operation in plain torch, carrying float64 between the named rounding boundaries; exact on the CPU.

Importing this package registers the implementations, for the CPU and for CUDA, where they serve until a kernel takes
an operation's place: outside the CPU none of them reads a tensor on the host or has a shape that depends on data.
"""

from optimized.ops.portable import (
    adjust_logits,
    compress_kv,
    engram,
    experts,
    grouped_linear,
    hyper_connection,
    index_scores,
    linear,
    linear_weight,
    quantize,
    rms_norm,
    rope,
    sample,
    selection,
    sparse_attention,
    store_entries,
    verification_lengths,
    verify,
)
from optimized.ops.registry import MEASURED, UNTESTED, implementations, register

__all__ = [
    "adjust_logits",
    "compress_kv",
    "engram",
    "experts",
    "grouped_linear",
    "hyper_connection",
    "index_scores",
    "linear",
    "linear_weight",
    "quantize",
    "rms_norm",
    "rope",
    "sample",
    "selection",
    "sparse_attention",
    "store_entries",
    "verification_lengths",
    "verify",
]

#: Operations whose results on an NVIDIA H200 were compared with the CPU's, alone or as parts of the engine.
MEASURED_ON_CUDA = """
    adjust_logits bf16_linear block_diagonal_linear combine_experts compress_kv draw engram_gate engram_hash
    engram_lookup fp32_linear fp8_linear grouped_bf16_linear grouped_fp4_linear hyper_connection_collapse
    hyper_connection_expand hyper_connection_mix index_scores judge_drafts log_probabilities philox_words
    prepare_dense_weight prepare_fp4_weight prepare_fp8_weight process_logits quantize_fp8 quantize_mxfp4
    quantize_nvfp4 rms_norm rope route_experts select_candidates select_lengths select_topk sparse_attention
    store_entries survivals swiglu unpack_bits
"""


def _serve_cuda() -> None:
    """Registers what serves the CPU for CUDA too."""
    measured = MEASURED_ON_CUDA.split()
    for (name, backend), found in list(implementations().items()):
        if backend == "cpu":
            register(name, backend="cuda", state=MEASURED if name in measured else UNTESTED)(found.function)


_serve_cuda()
