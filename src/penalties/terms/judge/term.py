"""The term: the mean score of samples by a classifier of Transformers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from ...errors import NonFiniteError, OptionError, ShapeError
from ...functional.options import check_choice, check_count, check_flag, check_number, is_whole
from ...pipeline.evaluation import Evaluation
from ...pipeline.kinds import described, is_row
from ...training.libraries import library
from ..sampled import check_unread, score_gradient
from .loading import OWNER, load_model, load_tokenizer
from .reading import batches, encode, lengths

if TYPE_CHECKING:
    import torch

__all__ = ["Judge"]

_GRADIENTS = ("none", "score", "straight-through")
_SCORES = ("logit", "probability", "logprob")
_MOST: Final = 1.01
"""What rounding in half precision may make of a probability of 1."""


class Judge:
    """A reward model or another classifier that scores samples; the value is the mean of −score, which training lowers.

    It reads `samples`, a list of texts, or of token ids of its own tokenizer. It is loaded at the first call, once in
    each process, in eval mode, and is never trained; `gradient` says what is:

    - "none": nothing; the term is a constant, with `differentiable=False`.
    - "score": the log-probabilities of samples that were drawn from the model, `logprobs`, a number or an array of
      tokens for each. The gradient is that of the expected score, unbiased.
    - "straight-through": `samples` are probabilities over the judge's own vocabulary, (B, T, V). It reads the likeliest
      token of each position, and its slopes at these are passed on to all probabilities. `mask`, (B, T), says which
      positions count, the first ones of each sample.

    `logprobs` and `mask` are inputs that have to be named: `inputs={"samples": "answers", "logprobs": "logprobs"}`.
    Metrics: `mean`, `min` and `max` of the scores, `above` with a threshold, the share of scores above it, and
    `truncated`, samples that are longer than the judge reads.

    - `model`: a folder, a name on the Hugging Face hub, or a module in eval mode. Code that comes with it is not run.
    - `tokenizer`: of a module that is to read texts; otherwise it is the one in the model's folder.
    - `label`: which output is the score, by its name or number, where there are several.
    - `score`: "logit", "probability" or "logprob" of this label: among all, or against its absence where the model has
      one output, or labels of which several may hold (`problem_type="multi_label_classification"` in its config).
    - `maximise`: False has training lower the score.
    - `baseline`: whether the mean of the other samples is subtracted, which lowers the variance of "score".
    - `threshold`: for the metric `above`.
    - `device`, `dtype`: of a model that is loaded; by default a GPU if there is one, and the precision of its files.
    - `batch`: samples in one pass, one if the model has no token for padding.
    - `max_length`: tokens of a sample, by default as many as the model has positions.

    >>> from penalties.terms.judge import Judge
    >>> Judge("rewards/helpful", gradient="score", threshold=0.0)
    Judge('rewards/helpful', gradient='score')
    """

    name = "judge"

    def __init__(
        self,
        model: "str | Path | torch.nn.Module",
        *,
        tokenizer: Any = None,
        label: str | int | None = None,
        score: Literal["logit", "probability", "logprob"] = "logit",
        maximise: bool = True,
        gradient: Literal["none", "score", "straight-through"] = "none",
        baseline: bool = True,
        threshold: float | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch: int = 32,
        max_length: int | None = None,
    ) -> None:
        """Check the options; nothing is loaded yet."""
        given: Any = model
        by_name = isinstance(given, str | Path)
        if not by_name and not hasattr(given, "config"):
            raise OptionError(OWNER, "model", described(given), "a folder, a name, or a classifier of Transformers")
        if not by_name and (device is not None or dtype is not None):
            option, value = ("dtype", dtype) if device is None else ("device", device)
            raise OptionError(OWNER, option, value, "None with a module, which keeps its device and dtype")
        self._model, self._tokenizer, self._label = model, tokenizer, label
        check_choice(OWNER, "score", score, _SCORES)
        check_choice(OWNER, "gradient", gradient, _GRADIENTS)
        self._score, self._gradient = score, gradient
        check_flag(OWNER, "maximise", maximise)
        check_flag(OWNER, "baseline", baseline)
        self._sign, self._baseline = -1.0 if maximise else 1.0, bool(baseline)
        if threshold is not None:
            threshold = check_number(OWNER, "threshold", threshold, "None, or a finite number")
        self._threshold = threshold
        self._device, self._dtype = device, dtype
        check_count(OWNER, "batch", batch, 1)
        self._batch = batch
        if max_length is not None:
            check_count(OWNER, "max_length", max_length, 1)
        self._max_length = max_length
        self._loaded: Any = None

    def __call__(self, samples: Any, logprobs: Any = None, mask: Any = None) -> Evaluation:
        """The value, the gradient and the metrics."""
        check_unread(OWNER, self._gradient, logprobs=logprobs, mask=mask)
        if self._gradient == "straight-through":
            return self._straight_through(samples, mask)
        module = self._module()
        encoded = encode(samples, self._reader(samples), self._longest(module))
        scores = self._scores(module, encoded.ids)
        gradient = None
        if self._gradient == "score":
            losses = self._sign * scores
            at = score_gradient(OWNER, losses, logprobs, baseline=self._baseline, discrete=True)
            gradient = {"logprobs": at}
        return Evaluation(self._sign * float(scores.mean()), gradient, self._metrics(scores, encoded.truncated))

    def __repr__(self) -> str:
        """Its model and its gradient."""
        shown = repr(str(self._model)) if isinstance(self._model, str | Path) else type(self._model).__name__
        return f"Judge({shown}, gradient={self._gradient!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Without what was loaded: each process loads it itself."""
        return {**vars(self), "_loaded": None}

    def _module(self) -> Any:
        """The classifier, in eval mode."""
        if self._loaded is None:
            model: Any = self._model
            self._loaded = load_model(model, self._device, self._dtype) if isinstance(model, str | Path) else model
        if self._loaded.training:
            raise OptionError(OWNER, "model", "a module in training mode", "one in eval mode: call its eval()")
        return self._loaded

    def _reader(self, samples: Any) -> Any:
        """The tokenizer, where there are texts to read."""
        texts = is_row(samples) and any(isinstance(one, str) for one in samples)
        if self._tokenizer is None and texts:
            if not isinstance(self._model, str | Path):
                raise OptionError(OWNER, "tokenizer", None, "that of the module, which is to read texts")
            self._tokenizer = load_tokenizer(self._model)
        return self._tokenizer

    def _longest(self, module: Any) -> int | None:
        """Tokens that the model has positions for; None if unknown."""
        known = (
            self._max_length,
            getattr(module.config, "max_position_embeddings", None),
            getattr(self._tokenizer, "model_max_length", None),
        )
        return min((limit for limit in known if limit is not None and limit > 0), default=None)

    def _scores(self, module: Any, ids: list[list[int]]) -> "np.ndarray[Any, Any]":
        import torch

        vocabulary = module.get_input_embeddings().weight.shape[0]
        for number, one in enumerate(ids):
            if not 0 <= min(one) <= max(one) < vocabulary:
                wrong = min(one) if min(one) < 0 else max(one)
                expected = (
                    f"token ids of the judge, from 0 to {vocabulary - 1}, by its own tokenizer and without padding"
                )
                raise OptionError(OWNER, f"samples[{number}]", wrong, expected)
        padding = module.config.pad_token_id
        found = np.empty(len(ids))
        with torch.no_grad():
            # Of several samples, models look for the last token by what pads the others.
            most = 1 if padding is None else self._batch
            for rows in batches([len(one) for one in ids], most, padding=True):
                longest = max(len(ids[row]) for row in rows)
                filled = [ids[row] + [padding] * (longest - len(ids[row])) for row in rows]
                mask = [[1] * len(ids[row]) + [0] * (longest - len(ids[row])) for row in rows]
                inputs = [torch.tensor(one, device=module.device) for one in (filled, mask)]
                scores = self._read(module, module(input_ids=inputs[0], attention_mask=inputs[1]).logits)
                found[rows] = scores.double().cpu().numpy()
        return _finite(found)

    def _straight_through(self, samples: Any, mask: Any) -> Evaluation:
        import torch

        module = self._module()
        embedding = module.get_input_embeddings()
        vocabulary = embedding.weight.shape[0]
        if not isinstance(samples, torch.Tensor) or samples.dim() != 3 or samples.shape[2] != vocabulary:
            there = tuple(samples.shape) if isinstance(samples, torch.Tensor) else described(samples)
            raise ShapeError(
                f"{OWNER}: samples is {there}; expected probabilities of shape (B, T, {vocabulary}), over the tokens "
                "of the judge, as a torch.Tensor"
            )
        sizes = lengths(mask, samples.shape)
        longest = self._longest(module)
        if longest is not None and max(sizes) > longest:
            raise ShapeError(f"{OWNER}: samples has {max(sizes)} positions; expected at most {longest}")
        found = np.empty(len(sizes))
        gradient = torch.zeros(samples.shape, dtype=torch.float32)
        with torch.enable_grad():
            # Nothing is padded: models that look for the last token cannot see it among vectors.
            most = 1 if module.config.pad_token_id is None else self._batch
            for rows in batches(sizes, most, padding=False):
                part = samples[rows, : sizes[rows[0]]].detach()
                _check_probabilities(part)
                likeliest = part.argmax(-1).to(module.device)
                weight = embedding.weight.detach()
                hard = torch.nn.functional.one_hot(likeliest, vocabulary).to(weight.dtype).requires_grad_()
                # The value is that of the tokens as the model embeds them, whatever it does with a vector.
                vectors = embedding(likeliest).detach() + (hard - hard.detach()) @ weight
                scores = self._read(module, module(inputs_embeds=vectors).logits)
                (slopes,) = torch.autograd.grad(scores.sum(), hard)
                found[rows] = scores.detach().double().cpu().numpy()
                gradient[rows, : sizes[rows[0]]] = slopes.float().cpu()
        scale = self._sign / len(sizes)
        return Evaluation(
            self._sign * float(_finite(found).mean()), {"samples": gradient * scale}, self._metrics(found, 0)
        )

    def _read(self, module: Any, logits: "torch.Tensor") -> "torch.Tensor":
        """The scores in the outputs of a batch."""
        torch = library("a judge", "torch", extra="judge")
        count = logits.shape[-1]
        logits = logits.float()
        if self._score != "logit":
            alone = count == 1 or module.config.problem_type == "multi_label_classification"
            logits = torch.nn.functional.logsigmoid(logits) if alone else logits.log_softmax(-1)
        column = logits[:, 0 if count == 1 and self._label is None else self._column(module, count)]
        return column.exp() if self._score == "probability" else column

    def _column(self, module: Any, count: int) -> int:
        names: dict[str, int] = module.config.label2id or {}
        label = self._label
        number: Any = names.get(label) if isinstance(label, str) else label
        if is_whole(number) and 0 <= number < count:
            return number
        known = ", ".join(f'"{name}"' for name in names)
        raise OptionError(OWNER, "label", label, f"one of the outputs: {known}, or a number from 0 to {count - 1}")

    def _metrics(self, scores: "np.ndarray[Any, Any]", truncated: int) -> dict[str, Any]:
        found = {"mean": float(scores.mean()), "min": float(scores.min()), "max": float(scores.max())}
        if self._threshold is not None:
            found["above"] = float((scores > self._threshold).mean())
        return {**found, "truncated": truncated}


def _finite(scores: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    if not np.isfinite(scores).all():
        worst = float(scores[~np.isfinite(scores)][0])
        raise NonFiniteError.of(worst, f"{OWNER}: a score is {worst}; expected finite numbers: try a wider dtype")
    return scores


def _check_probabilities(samples: "torch.Tensor") -> None:
    """Logits have a likeliest token too, but slopes would be passed on to what is not a probability."""
    least, most = (float(one) for one in samples.aminmax())
    if not 0 <= least <= most <= _MOST:
        wrong = most if least >= 0 else least
        raise OptionError(OWNER, "samples", wrong, "probabilities from 0 to 1, such as logits.softmax(-1)")
