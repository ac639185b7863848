"""Everything that a config may name: for `penalties list` and `penalties describe`."""
