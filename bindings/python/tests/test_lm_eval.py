"""As a model of lm-evaluation-harness: runs where lm-eval is installed, and beside its hf backend where torch is, too.

SMOL_LM_EVAL_MODEL is a checkpoint's directory to try it with, by default models/tales-4m.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import smolrun
from conftest import TALES

# Nothing is fetched.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
lm_eval = pytest.importorskip("lm_eval")

ITEMS = 200
CHECKPOINT = Path(os.environ.get("SMOL_LM_EVAL_MODEL", TALES))
TASKS = {
    "choices": """
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: 0
""",
    "texts": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}]
""",
    "answers": """
output_type: generate_until
doc_to_text: "{{context}}"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["."], max_gen_toks: 16, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three tasks of 200 items, of what the model itself tells by chance."""
    folder = tmp_path_factory.mktemp("tasks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMOLRUN_CACHE", str(folder / "cache"))
        write_tasks(folder)
        yield folder


def write_tasks(folder: Path) -> None:
    model = smolrun.load(CHECKPOINT, dtype="f32")
    starts = ["Once upon a time", "The king", "A little girl", "In the wood"]
    prompts = [starts[i % 4] for i in range(ITEMS)]
    told = [found.text for found in model.batch(prompts, max_tokens=60, temperature=1.0, ignore_eos=True)]
    with open(folder / "items.jsonl", "w") as file:
        for i, text in enumerate(told):
            words = (prompts[i] + text).split(" ")
            others = told[(i + 7) % ITEMS].split(" ")
            choices = [" ".join(words[15:18]), " ".join(others[3:6]) or "a"]
            item = {"context": " ".join(words[:15]), "choices": [" " + choice for choice in choices], "text": text}
            file.write(json.dumps(item) + "\n")
    for name, task in TASKS.items():
        data = f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder}/items.jsonl}}}}\n"
        (folder / f"{name}.yaml").write_text(data + "test_split: test\n" + task)


def responses(tasks: Path, model: Any, arguments: str, names: list[str], batch_size: int) -> dict[str, list[Any]]:
    """What a model says to each item of each task."""
    import smolrun.lm_eval  # noqa: F401  (which registers it)

    found = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=names,
        batch_size=batch_size,
        task_manager=lm_eval.tasks.TaskManager(include_path=str(tasks)),
        bootstrap_iters=0,
    )
    samples = found["samples"]
    return {name: [sample["resps"] for sample in sorted(samples[name], key=lambda of: of["doc_id"])] for name in names}


def test_numbers_do_not_depend_on_the_batch_size(tasks: Path) -> None:
    arguments = f"pretrained={CHECKPOINT},dtype=f32"
    by_one = responses(tasks, "smolrun", arguments, list(TASKS), 1)
    assert responses(tasks, "smolrun", arguments, list(TASKS), 16) == by_one
    assert all(len(found) == ITEMS for found in by_one.values())


def test_numbers_are_those_of_transformers(tasks: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    names = list(TASKS)
    ours = responses(tasks, "smolrun", f"pretrained={CHECKPOINT},dtype=f32", names, 16)
    theirs = responses(tasks, "hf", f"pretrained={CHECKPOINT},dtype=float32,device=cpu", names, 8)
    far = 0.0
    for our, their in zip(ours["choices"], theirs["choices"], strict=True):
        for [(ours_is, our_greedy)], [(theirs_is, their_greedy)] in zip(our, their, strict=True):
            far = max(far, abs(ours_is - theirs_is))
            assert our_greedy == their_greedy
    print(f"largest difference of a log-likelihood: {far:.2e}")
    assert far < 1e-3
    for [[our_sum]], [[their_sum]] in zip(ours["texts"], theirs["texts"], strict=True):
        assert abs(our_sum - their_sum) < 1e-3, "60 tokens"
    same = [our == their for our, their in zip(ours["answers"], theirs["answers"], strict=True)]
    assert sum(same) >= 0.98 * ITEMS, "but where two tokens are about as likely"
