#!/usr/bin/env python3
"""Make tests/data/lora: a tiny Llama, LoRAs that PEFT saved for it, and what PEFT's merge_and_unload makes of each.

usage: lora.py OUT_DIR        needs: torch, transformers, safetensors, peft 0.21.2

OUT_DIR/base.safetensors are the model's tensors in f32, OUT_DIR/biases.safetensors the biases of one that has all of them
(names that begin with "biased" are of it), OUT_DIR/NAME/ is an adapter as PEFT saves it, and
OUT_DIR/NAME/merged.safetensors the tensors that differ once PEFT has read that and merged it.
"""
import pathlib
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS = {
    "plain": dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]),
    "rslora": dict(r=3, lora_alpha=5, use_rslora=True, target_modules=ALL),
    "patterns": dict(r=4, lora_alpha=8, target_modules=ALL, rank_pattern={"down_proj": 2, "layers.1.self_attn.q_proj": 7},
                     alpha_pattern={"k_proj": 3, "^model.layers.0.mlp.up_proj": 1}),
    "expression": dict(r=2, lora_alpha=4, target_modules=r".*layers\.1\..*(q|gate)_proj"),
    "layers": dict(r=2, lora_alpha=4, target_modules=["o_proj"], layers_to_transform=[1]),
    "embeddings": dict(r=4, lora_alpha=8, target_modules=["embed_tokens", "lm_head", "q_proj"]),
    "saved": dict(r=4, lora_alpha=8, target_modules=["q_proj"], modules_to_save=["lm_head", "embed_tokens"]),
    "dora": dict(r=3, lora_alpha=6, use_dora=True, use_rslora=True, target_modules=ALL),
    "fan": dict(r=2, lora_alpha=4, fan_in_fan_out=True, target_modules=["q_proj", "lm_head", "embed_tokens"]),
    "excluded": dict(r=2, lora_alpha=4, target_modules="all-linear", exclude_modules=["k_proj", "layers.1.mlp.up_proj"]),
    "biased": dict(r=3, lora_alpha=6, lora_bias=True, use_rslora=True, target_modules=ALL),
    "biased-all": dict(r=3, lora_alpha=6, bias="all", target_modules=["q_proj", "down_proj"]),
    "biased-only": dict(r=3, lora_alpha=6, bias="lora_only", target_modules=["q_proj", "down_proj"]),
}


def model(weights=None, biased=False):
    made = LlamaForCausalLM(LlamaConfig(
        vocab_size=37, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False,
        attention_bias=biased, mlp_bias=biased))
    if weights:
        made.load_state_dict(weights)
    return made.float()


def main(out):
    torch.manual_seed(6)
    base = {name: tensor.clone() for name, tensor in model().state_dict().items()}
    out.mkdir(parents=True, exist_ok=True)
    save_file(base, out / "base.safetensors")
    with torch.random.fork_rng():
        shapes = {name: tensor.shape for name, tensor in model(biased=True).state_dict().items() if name not in base}
        biases = {name: torch.randn(shape) for name, shape in shapes.items()}
    save_file(biases, out / "biases.safetensors")
    for name, options in ADAPTERS.items():
        biased = name.startswith("biased")
        weights = {**base, **biases} if biased else base
        tuned = get_peft_model(model(weights, biased), LoraConfig(task_type="CAUSAL_LM", **options))
        with torch.no_grad():
            for parameter in tuned.parameters():
                if parameter.requires_grad:
                    parameter.normal_(0, 0.3)
        tuned.save_pretrained(out / name)
        (out / name / "README.md").unlink(missing_ok=True)
        with torch.random.fork_rng():
            merged = PeftModel.from_pretrained(model(weights, biased), out / name).merge_and_unload().state_dict()
        assert merged.keys() == weights.keys()
        changed = {key: value.contiguous().clone() for key, value in merged.items()
                   if not torch.equal(value, weights[key])}
        save_file(changed, out / name / "merged.safetensors")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    main(pathlib.Path(sys.argv[1]))
