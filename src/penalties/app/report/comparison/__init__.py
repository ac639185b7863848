"""Several runs compared."""
