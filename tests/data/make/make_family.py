#!/usr/bin/env python3
"""Writes tests/data/family/*: a tiny random model of each architecture, and its logits by transformers.

    python3 tests/data/make/make_family.py        # needs torch and transformers

Weights are bfloat16 numbers, computed with in float32 by the eager attention of transformers' own classes, which read
the config.json that is written here; of a model named v5-… it is written by transformers itself. logits.safetensors holds `logits`, `[tokens, vocab_size]`, for tokens.json; of
SmolLM3 also `logits.N`, those of the model cut off after its first N layers.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

FAMILY = Path(__file__).resolve().parent.parent / "family"
TOKENS = [(i * i * 7 + 3 * i + 5) % 37 for i in range(96)]
SIZES = {
    "vocab_size": 37, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 3,
    "num_key_value_heads": 1, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "bfloat16",
}


def llama(**more):
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SIZES, **more}


def scaled(factor, **more):
    scaling = {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    return llama(rope_theta=500000.0, rope_scaling=scaling, **more)


def mistral(**more):
    sizes = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], **SIZES, "head_dim": 32}
    return {**sizes, "num_attention_heads": 2, "rope_theta": 10000.0, "tie_word_embeddings": False, **more}


def qwen2(**more):
    sizes = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **SIZES, "rms_norm_eps": 1e-6}
    return {**sizes, "rope_theta": 1000000.0, "use_sliding_window": False, "sliding_window": 32, "max_window_layers": 1, **more}


def qwen3(**more):
    sizes = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **SIZES, "rms_norm_eps": 1e-6}
    return {**sizes, "head_dim": 32, "attention_bias": False, "rope_theta": 1000000.0, "tie_word_embeddings": True, **more}


def smollm3(**more):
    sizes = {"model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"], **SIZES, "num_hidden_layers": 5}
    return {**sizes, "rope_theta": 5000000.0, "rope_scaling": None, "pad_token_id": 2,
            "use_sliding_window": False, **more}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "rope_type": "longrope", "original_max_position_embeddings": 128, "short_factor": [1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0],
    "long_factor": [1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0],
}


# What a model must not agree with: the same one without what it is here to test.
ROWS = {
    "smollm": (llama(tie_word_embeddings=True, rope_theta=10000.0, max_position_embeddings=2048), None),
    "smollm2": (llama(tie_word_embeddings=True, rope_theta=100000.0, num_key_value_heads=3, pad_token_id=2), None),
    "llama2": (llama(tie_word_embeddings=False, num_key_value_heads=3, pretraining_tp=1), None),
    "tinyllama": (llama(tie_word_embeddings=False, rope_theta=10000.0, rope_scaling=None), None),
    "llama3": (llama(tie_word_embeddings=False, rope_theta=500000.0), {"rope_theta": 10000.0}),
    "llama3.1": (scaled(8.0, eos_token_id=[1, 8, 9]), {"rope_scaling": None}),
    "llama3.2": (scaled(32.0, tie_word_embeddings=True, head_dim=32), {"rope_scaling": None}),
    "llama-linear": (llama(rope_scaling={"type": "linear", "factor": 4.0}), {"rope_scaling": None}),
    "llama-biased": (llama(attention_bias=True), None),
    "mistral": (mistral(sliding_window=20), {"sliding_window": None}),
    "mistral-v0.3": (mistral(sliding_window=None), None),
    "qwen2": (qwen2(tie_word_embeddings=True), None),
    "qwen2.5-window": (qwen2(tie_word_embeddings=False, use_sliding_window=True), {"use_sliding_window": False}),
    "qwen3": (qwen3(), None),
    "qwen3-biased-window": (
        qwen3(attention_bias=True, use_sliding_window=True, sliding_window=17, max_window_layers=2),
        {"use_sliding_window": False},
    ),
    "smollm3": (smollm3(no_rope_layers=[1, 1, 1, 0, 1]), {"no_rope_layers": [1, 1, 1, 1, 1]}),
    "smollm3-window": (
        smollm3(no_rope_layer_interval=2, use_sliding_window=True, sliding_window=24),
        {"use_sliding_window": False},
    ),
    # From here on by what transformers 5 writes, and by what it reads of older files.
    "v5-llama": (scaled(8.0), {"rope_scaling": None}),
    "v5-mistral": (mistral(sliding_window=20), {"sliding_window": None}),
    "v5-qwen2-window": (qwen2(tie_word_embeddings=False, use_sliding_window=True), {"use_sliding_window": False}),
    "v5-qwen3-layers": (
        qwen3(use_sliding_window=True, sliding_window=17, layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
        {"use_sliding_window": False, "layer_types": None},
    ),
    "v5-smollm3": (
        smollm3(no_rope_layer_interval=2, use_sliding_window=True, sliding_window=24), {"use_sliding_window": False},
    ),
    "v5-yarn": (llama(rope_scaling=YARN, rope_theta=10000.0), {"rope_scaling": None}),
    "yarn-factor": (
        qwen2(tie_word_embeddings=True, max_position_embeddings=32, rope_scaling={
            "type": "yarn", "factor": 4.0, "attention_factor": 1.3, "beta_fast": 4, "beta_slow": 0.5, "truncate": False}),
        {"rope_scaling": {**YARN, "attention_factor": 1.3}},
    ),
    "yarn-mscale": (
        qwen3(rope_theta=20000.0, rope_scaling={**YARN, "factor": None, "mscale": 1.5, "mscale_all_dim": 0.5}),
        {"rope_scaling": YARN},
    ),
    "yarn-unturned": (
        smollm3(no_rope_layers=[1, 0, 1, 0, 1], rope_scaling={**YARN, "attention_factor": 1.25}),
        {"rope_scaling": {**YARN, "attention_factor": 1.0}},
    ),
    "longrope": (llama(max_position_embeddings=512, rope_scaling=LONGROPE), {"rope_scaling": None}),
    "mlp-biased": (llama(attention_bias=True, mlp_bias=True), None),
}


def load(config, directory, weights=None, layers=None):
    """The model of a config as transformers reads it from a file."""
    if layers is not None:
        config = {**config, "num_hidden_layers": layers}
        if "no_rope_layers" in config:
            config["no_rope_layers"] = config["no_rope_layers"][:layers]
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory), attn_implementation="eager")
    if weights is not None:
        own = model.state_dict()
        model.load_state_dict({name: weights[name] for name in own})
    return model.float().eval()


def randomise(model):
    """Weights for which attention looks at some positions more than at others, rounded to bfloat16."""
    for name, parameter in model.named_parameters():
        std, mean = (0.2, 1.0) if "norm" in name else (0.5, 0.0) if "bias" in name else (0.3, 0.0)
        values = torch.empty_like(parameter).normal_(mean, std)
        parameter.data.copy_(values.to(torch.bfloat16).float())


def logits(model):
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].contiguous()


def save(model, directory, shards):
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    if shards == 1:
        return save_file(tensors, directory / "model.safetensors")
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        names = sorted(tensors)[shard::shards]
        save_file({name: tensors[name] for name in names}, directory / file)
        weight_map.update({name: file for name in names})
    index = {"metadata": {"total_size": sum(t.numel() * 2 for t in tensors.values())}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def main():
    shutil.rmtree(FAMILY, ignore_errors=True)
    FAMILY.mkdir()
    (FAMILY / "tokens.json").write_text(json.dumps(TOKENS) + "\n")
    for seed, (name, (config, without)) in enumerate(ROWS.items()):
        directory = FAMILY / name
        directory.mkdir()
        torch.manual_seed(seed)
        model = load(config, directory)
        randomise(model)
        reference = {"logits": logits(model)}
        weights = model.state_dict()
        if without is not None:
            other = logits(load({**config, **without}, directory, weights))
            difference = (other - reference["logits"]).abs().amax(dim=1)
            print(f"{name:20} differs by {difference.max():.2f}, first at {(difference > 0.1).nonzero()[0].item()}")
        if name.startswith("smollm3"):
            for layers in range(1, config["num_hidden_layers"] + 1):
                reference[f"logits.{layers}"] = logits(load(config, directory, weights, layers))
        load(config, directory)
        if name.startswith("v5-"):
            AutoConfig.from_pretrained(directory).save_pretrained(directory)
            saved = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory), attn_implementation="eager")
            saved.load_state_dict(weights)
            assert torch.equal(logits(saved.float().eval()), reference["logits"])
        save(model, directory, 3 if name == "llama2" else 1)
        save_file(reference, directory / "logits.safetensors")
        print(f"{name:20} logits {reference['logits'].abs().max():.1f}")


if __name__ == "__main__":
    main()
