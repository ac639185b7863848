"""Where terms run that do not run inline: one file per pool."""

__all__: list[str] = []
