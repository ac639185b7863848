"""SkyRL 0.3.0: a server of the Tinker form that others wrote, on a CPU, with the newest SDK that it understands.

What its JAX backend, which is the one that runs here, divides gradients by; servers that average have a surrogate:

- Each sequence's loss is divided by the sum of its weights, or by 1e-9 where that sum is less. Under cross_entropy the
  weights are minus the gradient: the scale of a loss and the balance between data are lost, and a datum whose weights
  sum to nothing or less gets a gradient about 1e9 times too long. Under importance_sampling without weights the divisor
  is the length of the sequence.
- At a step everything added up since the last is divided by the number of sequences in it, over all requests.

Its torch backends, fsdp and megatron, need GPUs. They add up, as Tinker does: `test_torch_backends.py` says so.

What the tests take care of:

- It compiles once for each number of sequences and each length, rounded up to 32 at least.
- One `lora_A` serves q, k and v, and another gate and up; adapters are exported with a copy for each.
- It holds `max_lora_adapters - 1` clients, and waits for ever on a target outside its vocabulary.
"""
