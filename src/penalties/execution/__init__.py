"""Where terms run, and what happens when one fails or is late.

Nothing is imported here: workers set up native libraries, in `preload`, before anything loads them.
"""
