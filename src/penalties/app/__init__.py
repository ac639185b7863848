"""The program: `penalties train`, its runs, and its report."""
