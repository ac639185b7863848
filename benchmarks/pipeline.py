"""A pipeline of log-probabilities against the weighted sum written out, forward and backward."""

from .harness import Row, compare
from .terms import agree, backward, inline, logprobs, looped, pipeline


def run(scale: float) -> list[Row]:
    # With the allocator as users have it: the arrays are small, and two equal sides agree without further care.
    x = logprobs(100, 100)
    five = pipeline()
    agree(x, inline, five.total)

    def read() -> dict[str, float]:
        x.grad = None
        out = five(x)
        out.total.backward()
        return out.metrics()

    plain, ours = backward(inline, x), backward(lambda x: five(x).total, x)
    rows = [
        compare("5 terms, 1e4", plain, ours, seconds=8.0 * scale, most_ratio=1.05),
        compare("5 terms, 1e4, metrics read", plain, read, seconds=8.0 * scale, most_ratio=1.08),
    ]

    x = logprobs(10, 100)
    for count in (1, 10, 100):
        many, loop = pipeline(count), looped(count)
        agree(x, loop, many.total)
        plain, ours = backward(loop, x), backward(many.total, x)
        case = f"a term of {count}, 1e3"
        rows.append(compare(case, plain, ours, seconds=4.0 * scale, each=count, most_more=15.0))

    ten, hundred = backward(pipeline(10).total, x), backward(pipeline(100).total, x)

    def ten_times() -> None:
        for _ in range(10):
            ten()

    case = "100 terms at once against 10 times 10, 1e3"
    rows.append(compare(case, ten_times, hundred, seconds=6.0 * scale, each=100, most_ratio=1.3))
    return rows
