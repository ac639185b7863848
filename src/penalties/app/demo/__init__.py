"""The config that ships with the program, and its data."""
