"""The program from Python."""
