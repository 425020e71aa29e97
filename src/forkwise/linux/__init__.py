"""Kernel primitives: system calls, trees by descriptor, mounts, control groups, Landlock and seccomp.

Nothing here knows what a branch or a sandbox is.
"""
