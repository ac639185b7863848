import importlib.util

# `make test-integrations` has an environment for these; elsewhere they are no tests.
collect_ignore_glob = [] if importlib.util.find_spec("lightning") else ["*.py"]
