"""Keys that people know from other programs and from the library, and what a config calls them."""

from collections.abc import Mapping
from typing import Final

__all__ = ["instead_of"]

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "model.name": ("base_model", "model_name", "model_name_or_path", "pretrained_model_name_or_path"),
    "model.rank": ("lora_r", "lora_rank", "r"),
    "model.alpha": ("lora_alpha",),
    "model.target_modules": ("lora_target", "lora_target_modules"),
    "model.rslora": ("use_rslora",),
    "model.quantize": ("load_in_4bit", "load_in_8bit", "quantization", "quantization_bit"),
    "model.attention": ("attn_implementation", "flash_attention", "use_flash_attention_2"),
    "model.compile": ("torch_compile",),
    "model.checkpointing": ("activation_checkpointing", "gradient_checkpointing"),
    "model.dtype": ("bf16", "fp16", "precision", "torch_dtype"),
    "data.path": ("data_path", "dataset", "dataset_path", "train_data", "train_file", "train_files"),
    "data.eval_path": ("eval_dataset", "eval_file", "val_data", "val_file", "validation_file"),
    "data.group_by_length": ("bucketing", "length_bucketing", "length_grouped"),
    "data.max_length": ("cutoff_len", "max_len", "max_seq_len", "max_seq_length", "seq_len", "sequence_len"),
    "train.steps": ("max_iters", "max_steps", "num_steps", "num_train_steps", "total_steps"),
    "train.epochs": ("max_epochs", "n_epochs", "num_epochs", "num_train_epochs"),
    "train.batch_size": ("per_device_train_batch_size", "train_batch_size"),
    "train.loss, which is the base loss": ("term.base",),
    "train.packing": ("padding_free", "sample_packing"),
    "train.optimizer": ("optim",),
    "train.learning_rate": ("lr",),
    "train.beta1": ("adam_beta1",),
    "train.beta2": ("adam_beta2",),
    "train.eps": ("adam_eps", "adam_epsilon"),
    "train.weight_decay": ("wd",),
    "train.grad_clip_norm": ("clip_grad_norm", "grad_clip", "gradient_clipping", "max_grad_norm"),
    "train.checkpoint_every": ("save_every", "save_steps"),
    "train.keep": ("save_total_limit",),
    "train.best_by": ("metric_for_best_model",),
    "train.patience": ("early_stopping", "early_stopping_patience"),
    "train.min_improvement": ("early_stopping_threshold", "min_delta"),
    "train.eval_every": ("eval_steps", "evaluation_steps"),
    "train.gradients_every": ("log_grad_norm",),
    'train.schedule, such as { kind = "cosine" }': ("lr_schedule", "lr_scheduler", "lr_scheduler_type", "scheduler"),
    'train.schedule, such as { kind = "warmup", steps = 100 }': ("num_warmup_steps", "warmup_ratio", "warmup_steps"),
    "train.batch_size, which is that of an optimizer step": (
        *("accumulate_grad_batches", "grad_accum", "grad_accumulation_steps"),
        *("gradient_accumulation", "gradient_accumulation_steps", "micro_batch_size"),
    ),
    "--run FOLDER on the command line": ("output_dir", "save_dir", "run_dir"),
}

_NAMES: Final = {known: ours for ours, others in _KEYS.items() for known in others}


def instead_of(key: str) -> str | None:
    """What a config has for a key of another program, or for `table.key` of the library; None if that is unknown.

    >>> instead_of("lr"), instead_of("num_epochs"), instead_of("learning_rte")
    ('train.learning_rate', 'train.epochs', None)
    """
    return _NAMES.get(key.lower().replace("-", "_"))
