"""The commands, each a module with `command`, which is loaded when the command is called."""
