import importlib.util
import os

# `make test-integrations` has an environment for these, and runs them on either backend; elsewhere they are no tests.
collect_ignore_glob = [] if importlib.util.find_spec("keras") else ["*.py"]
os.environ.setdefault("KERAS_BACKEND", "jax")
