"""What the server that workers are forked from imports first: libraries read these settings when they are loaded."""

from .native import cap_threads

cap_threads(1)
