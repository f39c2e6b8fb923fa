#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a model of random weights in llama.cpp's GGUF format, with the sizes
of `ringfleet synth --preset r1-slice`: R1's layers, 3 of them, 32 experts,
4.33 B parameters. Needs the packages gguf and numpy.

usage: gguf_model.py --type q8_0|q4_0 --out FILE
"""

import argparse
import os

import gguf
import numpy as np

HIDDEN = 7168
LAYERS = 3
DENSE_LAYERS = 1
HEADS = 128
Q_RANK = 1536
KV_RANK = 512
ROPE_DIM = 64
NOPE_DIM = 128
V_DIM = 128
DENSE_WIDTH = 18432
EXPERT_WIDTH = 2048
EXPERTS = 32
EXPERTS_USED = 8
GROUPS = 8
GROUPS_USED = 4
VOCAB = 32768
CONTEXT = 163840

BLOCK = 32  # Elements that share a scale, in both types.
TYPES = {
    # Codes of a block, in bytes, and their standard deviation when random.
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, 32, 256 / 12**0.5),
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, 16, 16 / 12**0.5),
}


def tensors():
    """(name, shape) of every tensor, shapes as numpy has them; those with one
    dimension, and the routers, are float32."""
    yield "token_embd.weight", (VOCAB, HIDDEN)
    yield "output_norm.weight", (HIDDEN,)
    yield "output.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        yield prefix + "attn_norm.weight", (HIDDEN,)
        yield prefix + "attn_q_a.weight", (Q_RANK, HIDDEN)
        yield prefix + "attn_q_a_norm.weight", (Q_RANK,)
        yield prefix + "attn_q_b.weight", (HEADS * (NOPE_DIM + ROPE_DIM), Q_RANK)
        yield prefix + "attn_kv_a_mqa.weight", (KV_RANK + ROPE_DIM, HIDDEN)
        yield prefix + "attn_kv_a_norm.weight", (KV_RANK,)
        yield prefix + "attn_k_b.weight", (HEADS, KV_RANK, NOPE_DIM)
        yield prefix + "attn_v_b.weight", (HEADS, V_DIM, KV_RANK)
        yield prefix + "attn_output.weight", (HIDDEN, HEADS * V_DIM)
        yield prefix + "ffn_norm.weight", (HIDDEN,)
        if layer < DENSE_LAYERS:
            yield prefix + "ffn_gate.weight", (DENSE_WIDTH, HIDDEN)
            yield prefix + "ffn_up.weight", (DENSE_WIDTH, HIDDEN)
            yield prefix + "ffn_down.weight", (HIDDEN, DENSE_WIDTH)
            continue
        yield prefix + "ffn_gate_inp.weight", (EXPERTS, HIDDEN)
        yield prefix + "exp_probs_b.bias", (EXPERTS,)
        for part in ("gate", "up"):
            yield (prefix + f"ffn_{part}_exps.weight",
                   (EXPERTS, EXPERT_WIDTH, HIDDEN))
            yield prefix + f"ffn_{part}_shexp.weight", (EXPERT_WIDTH, HIDDEN)
        yield prefix + "ffn_down_exps.weight", (EXPERTS, HIDDEN, EXPERT_WIDTH)
        yield prefix + "ffn_down_shexp.weight", (HIDDEN, EXPERT_WIDTH)


def is_float(name, shape):
    return len(shape) == 1 or "ffn_gate_inp" in name


def add_parameters(writer):
    writer.add_name("r1-slice")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(DENSE_WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)  # The latent is shared by all heads.
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(VOCAB)
    writer.add_leading_dense_block_count(DENSE_LAYERS)
    writer.add_q_lora_rank(Q_RANK)
    writer.add_kv_lora_rank(KV_RANK)
    writer.add_key_length(KV_RANK + ROPE_DIM)
    writer.add_value_length(KV_RANK)
    writer.add_key_length_mla(NOPE_DIM + ROPE_DIM)
    writer.add_value_length_mla(V_DIM)
    writer.add_rope_dimension_count(ROPE_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(40.0)
    writer.add_rope_scaling_orig_ctx_len(4096)
    writer.add_rope_scaling_yarn_log_mul(0.1)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(EXPERTS_USED)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(EXPERT_WIDTH)
    writer.add_expert_group_count(GROUPS)
    writer.add_expert_group_used_count(GROUPS_USED)
    writer.add_expert_weights_scale(2.5)
    writer.add_expert_weights_norm(True)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_tokenizer_model("no_vocab")


def random_blocks(random, shape, codes, deviation):
    """Rows of blocks: a float16 scale, then codes of random bytes. Values have
    the deviation 1/sqrt(columns), as trained ones about have."""
    count = int(np.prod(shape)) // BLOCK
    blocks = np.empty((count, 2 + codes), np.uint8)
    scale = np.float16(1 / (deviation * shape[-1] ** 0.5))
    blocks[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    blocks[:, 2:] = random.integers(
        0, 256, (count, codes), dtype=np.uint8)
    return blocks


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--type", choices=TYPES, required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    kind, codes, deviation = TYPES[arguments.type]
    partial = arguments.out + ".partial"
    writer = gguf.GGUFWriter(partial, "deepseek2")
    add_parameters(writer)
    file_types = {"q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
                  "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0}
    writer.add_file_type(file_types[arguments.type])
    for name, shape in tensors():
        size = int(np.prod(shape))
        if is_float(name, shape):
            writer.add_tensor_info(name, shape, np.dtype(np.float32), size * 4)
        else:
            rows = shape[:-1] + (shape[-1] // BLOCK * (2 + codes),)
            writer.add_tensor_info(name, rows, np.dtype(np.uint8),
                                   size // BLOCK * (2 + codes), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(1)
    for name, shape in tensors():
        if not is_float(name, shape):
            data = random_blocks(random, shape, codes, deviation)
        elif "norm" in name:
            data = np.ones(shape, np.float32)
        elif "bias" in name:
            data = np.zeros(shape, np.float32)
        else:
            data = random.standard_normal(shape, np.float32)
            data /= np.float32(shape[-1] ** 0.5)
        writer.write_tensor_data(data)
    writer.close()
    os.rename(partial, arguments.out)


if __name__ == "__main__":
    main()
