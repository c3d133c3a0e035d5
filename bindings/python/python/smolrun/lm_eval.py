"""smolrun as a model of lm-evaluation-harness, where it is called "smolrun".

    import lm_eval, smolrun.lm_eval
    lm_eval.simple_evaluate(model="smolrun", model_args="pretrained=smol.bin", tasks=["arc_easy"])

or `python -m smolrun.lm_eval run --model smolrun --model_args pretrained=smol.bin --tasks arc_easy`. Numbers do not
depend on the batch size: a sequence's bits do not depend on the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

import smolrun

_Tokens = list[int]


@register_model("smolrun")
class SmolrunLM(TemplateLM):
    """A model as smolrun.load opens it."""

    def __init__(
        self,
        pretrained: str,
        *,
        dtype: str | None = None,
        threads: int | None = None,
        batch_size: int | str = 64,
        max_gen_toks: int = 256,
        **_: Any,
    ) -> None:
        """Open the model. batch_size is how many texts are generated at the same time."""
        super().__init__()
        self.model = smolrun.load(pretrained, dtype=dtype, threads=threads)  # type: ignore[arg-type]
        self.sequences = 64 if str(batch_size).startswith("auto") else int(batch_size)
        self.max_gen_toks = max_gen_toks

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self.model.eos_token_ids[0]

    @property
    def prefix_token_id(self) -> int:
        """The token before a text of which all is scored."""
        bos = self.model.bos_token_id
        return self.eot_token_id if bos is None else bos

    @property
    def tokenizer_name(self) -> str:
        """What cached requests are told apart by."""
        return str(self.model.source).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> _Tokens:
        """The token ids of a text, after what prompts begin with unless that is there already or not wanted."""
        ids = self.model.tokenize(string, special=True)
        if add_special_tokens is False or not ids or ids[0] == self.model.bos_token_id:
            return ids
        return self.model.tokenize(string, prompt=True, special=True)

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The model's chat template."""
        return self.model.chat_template or ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The text of a conversation."""
        return self.model.render_chat(chat_history, add_generation_prompt=add_generation_prompt)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of each text, after the token that begins one."""
        return [self._rolling(request.args[0]) for request in tqdm(requests, disable=disable_tqdm)]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """What the model generates after each context, up to one of the texts that end it."""
        with self.model.batch(map(self._request, requests), sequences=min(self.sequences, 256)) as batch:
            return [found.text for found in tqdm(batch, total=len(requests), disable=disable_tqdm)]

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], _Tokens, _Tokens]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> list[tuple[float, bool]]:
        return [
            self._score(context, continuation)
            for _, context, continuation in tqdm(requests, disable=disable_tqdm)
        ]

    def _score(self, context: _Tokens, continuation: _Tokens) -> tuple[float, bool]:
        # The last token is not fed. Of what is too long, the end counts.
        most = self.model.context_size + 1
        context = context[-max(1, most - len(continuation)) :]
        found = self.model.score(context, [continuation])[0]
        return found.logprob, found.is_greedy

    def _rolling(self, text: str) -> float:
        windows: Iterable[tuple[_Tokens, _Tokens]] = get_rolling_token_windows(
            token_list=self.tok_encode(text),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.model.context_size,
            context_len=1,
        )
        return sum(self._score(*make_disjoint_window(window))[0] for window in windows)

    def _request(self, request: Instance) -> dict[str, Any]:
        context, asked = request.args
        asked = normalize_gen_kwargs(asked, self.max_gen_toks)
        most = asked["max_gen_toks"]
        ids = self.tok_encode(context)[-max(1, self.model.context_size - most) :]
        drawn = {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"}
        options = {name: value for name, value in asked.items() if name in drawn}
        if not asked.get("do_sample"):
            options["temperature"] = 0.0
        until = asked.get("until") or []
        stop = [text for text in ([until] if isinstance(until, str) else until) if text]
        return {"prompt": ids or [self.prefix_token_id], "max_tokens": most, "stop": stop, **options}


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
