"""The client in this process: a Hugging Face causal model with a LoRA adapter, behind the Tinker protocol."""

from .client import LocalTrainingClient

__all__ = ["LocalTrainingClient"]
