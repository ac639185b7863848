"""Train a judge on preferences, and then a policy on the judge: the two halves of learning from feedback, in miniature.

The judge is a small classifier of Transformers, made here. It sees pairs of reviews of which the first was preferred,
and learns to score it higher (Bradley and Terry, 1952). Then it is a term: a policy writes reviews, the judge reads
them, and the score function trains the policy; a second term keeps it writing different ones. Run it with
`python examples/judge.py`; it needs `pip install "penalties[judge]"`.
"""

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from transformers import BertForSequenceClassification

import penalties as pn
from penalties.terms.judge import Judge

STEPS, BATCH, LENGTH = 100, 64, 5
WORDS = ["[PAD]", "the", "food", "was", "great", "fresh", "warm", "cold", "awful", "late"]
LIKED = {"great": 1.0, "fresh": 1.0, "warm": 0.5, "cold": -0.5, "awful": -1.0, "late": -1.0}
TASTE = torch.tensor([LIKED.get(word, 0.0) for word in WORDS])


def liked(reviews: Tensor) -> Tensor:
    """What people like, which the policy never sees: pleasant words, as long as none is said twice."""
    again = torch.stack([(reviews == word).sum(-1) > 1 for word in range(4, len(WORDS))], -1).sum(-1)
    return TASTE[reviews].sum(-1) - 2.0 * again


def trained_judge() -> BertForSequenceClassification:
    """A classifier with one output, that scores preferred reviews higher."""
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(vocab_size=len(WORDS), num_labels=1, pad_token_id=0, **small, **dropout)
    judge = BertForSequenceClassification(config)
    optimizer = torch.optim.Adam(judge.parameters(), lr=2e-3)
    for _ in range(600):
        reviews = torch.randint(1, len(WORDS), (2, BATCH, LENGTH))
        difference = torch.stack([judge(input_ids=ids).logits[:, 0] for ids in reviews]).diff(dim=0)[0]
        preferred = torch.bernoulli((2 * torch.stack([liked(ids) for ids in reviews]).diff(dim=0)[0]).sigmoid())
        loss = -logsigmoid(torch.where(preferred > 0, difference, -difference)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return judge.eval().requires_grad_(False)


class Policy(nn.Module):
    """Writes each word by the one before it and the place."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(LENGTH, len(WORDS), len(WORDS)))

    def forward(self) -> tuple[Tensor, Tensor, Tensor]:
        """Reviews as token ids, the log-probability of each, and all log-probabilities on the way."""
        last, reviews, logprobs, all_logprobs = torch.zeros(BATCH, dtype=torch.long), [], [], []
        for scores in self.scores:
            # Nobody writes padding.
            word = torch.distributions.Categorical(logits=scores[last, 1:])
            last = word.sample() + 1
            reviews.append(last)
            logprobs.append(word.log_prob(last - 1))
            all_logprobs.append(word.logits)
        return torch.stack(reviews, -1), torch.stack(logprobs).sum(0), torch.stack(all_logprobs, 1)


def measured(policy: Policy) -> str:
    """How people like what the policy writes."""
    reviews = torch.cat([policy()[0] for _ in range(10)])
    return f"people like it by {liked(reviews).mean().item():5.2f}, {len(reviews.unique(dim=0))} different of 640"


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    judge = Judge(trained_judge(), gradient="score", threshold=2.0)
    policy = Policy()
    before = measured(policy)
    pipeline = pn.Pipeline(
        [
            pn.Term(judge, inputs={"samples": "reviews", "logprobs": "logprobs"}),
            # Many good reviews, and not the best one again and again.
            pn.Term(pn.entropy, weight=0.3, inputs="all", options={"mode": "bonus"}),
        ]
    )
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.1)
    print(f"{'step':>4} {'score':>6} {'above 2':>8} {'entropy':>8}  a review")
    for step in range(STEPS + 1):
        reviews, logprobs, all_logprobs = policy()
        out = pipeline(reviews=reviews, logprobs=logprobs, all=all_logprobs)
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
        if step % 20 == 0:
            found = out["judge"].metrics
            review = " ".join(WORDS[word] for word in reviews[0])
            entropy = -out["entropy"].value.item()
            print(f"{step:4d} {found['mean']:6.2f} {found['above']:8.0%} {entropy:8.2f}  {review}")
    print(f"\nbefore: {before}\nafter:  {measured(policy)}")


if __name__ == "__main__":
    main()
