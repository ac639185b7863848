"""The verdict on a run, in sentences."""
