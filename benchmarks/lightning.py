"""A step of Lightning's trainer with four terms, against the same terms written into `training_step` by hand.

Both log the same numbers in the same steps.

Lightning is not in the environment of the other benchmarks, but in that of `make test-integrations`.
"""

import importlib.util
import logging
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import penalties as pn

from .harness import FIXED_ALLOCATOR, Row, compare, in_process

__all__ = ["run"]

ROWS = 64
WIDTH = 512
CLASSES = 256
CASES = {"one micro-batch": 1, "four micro-batches": 4}

PIPELINE = pn.Pipeline(
    [
        pn.Term(pn.l2, name="decay", weight=1e-6, inputs="params"),
        pn.Term(pn.entropy, weight=1e-2, inputs="logits", options={"logits": True, "mode": "bonus"}),
        pn.Term(pn.l2, name="size", weight=1e-6, inputs="logits", options={"reduction": "mean"}),
        pn.Term(pn.l1, name="activity", weight=1e-6, inputs="hidden", options={"reduction": "mean"}),
    ]
)


def run(scale: float) -> list[Row]:
    if importlib.util.find_spec("lightning") is None:
        print("Lightning is not installed here; `make bench` also runs this where it is.\n")
        return []
    return in_process("benchmarks.lightning:rows", scale, FIXED_ALLOCATOR)


def rows(scale: float) -> list[Row]:
    warnings.simplefilter("ignore")
    return [row(case, accumulation, scale) for case, accumulation in CASES.items()]


def row(case: str, accumulation: int, scale: float) -> Row:
    # Many: setting up a trainer takes as long as several steps.
    steps = 50 if scale else 1
    (by_hand, plain), (mixed, ours) = sides(accumulation, steps)
    for fit in (plain, ours):
        fit()
    for one, other in zip(by_hand.parameters(), mixed.parameters(), strict=True):
        np.testing.assert_allclose(one.detach(), other.detach(), rtol=1e-4, atol=1e-6)
    return compare(
        f"a step with four terms, {case}",
        plain,
        ours,
        seconds=60.0 * scale,
        unit="ms",
        each=steps,
        most_ratio=1.03,
    )


def sides(accumulation: int, steps: int) -> list[tuple[Any, Any]]:
    """Both modules, each with a function that trains it for an epoch of so many steps."""
    import lightning.pytorch as lightning

    # After the import, which sets another level.
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    from penalties.integrations.lightning import PenaltiesMixin

    class Network(lightning.LightningModule):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            torch.manual_seed(0)
            layers = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
            self.body, self.head = nn.Sequential(*layers), nn.Linear(WIDTH, CLASSES)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-5)

    class ByHand(Network):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            hidden = self.body(batch[0])
            logits = self.head(hidden)
            terms = {
                "decay": 1e-6 * pn.l2(self.parameters()),
                "entropy": 1e-2 * pn.entropy(logits, logits=True, mode="bonus"),
                "size": 1e-6 * pn.l2(logits, reduction="mean"),
                "activity": 1e-6 * pn.l1(hidden, reduction="mean"),
            }
            loss = cross_entropy(logits, batch[1])
            total = loss + sum(terms.values())
            if self.is_logged(batch_idx):
                numbers = {"loss/total": total.detach(), "loss/base_loss": loss.detach()}
                for name, term in terms.items():
                    weight, value = PIPELINE[name].weight, term.detach()
                    numbers |= {
                        f"loss/{name}": value / weight,
                        f"loss/{name}/weighted": value,
                        f"weight/{name}": weight,
                    }
                for name, part in {"base_loss": loss, **terms}.items():
                    numbers[f"loss/{name}/share"] = part.detach() / total.detach()
                self.log_dict(numbers, on_step=True, on_epoch=False, batch_size=1)
            return total

        def is_logged(self, batch_idx: int) -> bool:
            """The last micro-batch of the steps that Lightning logs, and of the epoch, as with the mixin."""
            trainer = self.trainer
            ends = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
            return trainer.is_last_batch or (ends and (trainer.global_step + 1) % trainer.log_every_n_steps == 0)

    class Mixed(PenaltiesMixin, Network):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            hidden = self.body(batch[0])
            logits = self.head(hidden)
            return self.penalize(cross_entropy(logits, batch[1]), logits=logits, hidden=hidden)

    torch.manual_seed(0)
    count = ROWS * accumulation * steps
    data = DataLoader(TensorDataset(torch.randn(count, WIDTH), torch.randint(CLASSES, (count,))), batch_size=ROWS)

    def side(module: Any) -> tuple[Any, Any]:
        def fit() -> None:
            trainer = lightning.Trainer(
                max_epochs=1,
                accumulate_grad_batches=accumulation,
                accelerator="cpu",
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(module, data)

        return module, fit

    return [side(ByHand()), side(Mixed(pipeline=PIPELINE))]
