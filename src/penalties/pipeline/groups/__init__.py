"""How several terms are evaluated together: by a kernel, over lazy logits, from one log_softmax, or as one graph."""
