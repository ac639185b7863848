"""Where terms run, and what happens when one fails or is late."""
