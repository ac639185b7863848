import importlib.util
import os

from tests.libraries import DEVICE

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]
elif DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    # Triton reads this when it is imported, and other tests must not run on its interpreter: it takes its time.
    collect_ignore = [
        "test_backward.py",
        "test_counting.py",
        "test_distributions.py",
        "test_elementwise.py",
        "test_grouping.py",
        "test_labels.py",
        "test_lengths.py",
        "test_picking.py",
    ]
