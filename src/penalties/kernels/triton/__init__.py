"""Kernels in Triton, for NVIDIA GPUs; its interpreter runs them on a CPU, for tests."""
