"""What the functions cost, next to what a user would write instead: `python -m benchmarks [--quick] [NAME ...]`."""
