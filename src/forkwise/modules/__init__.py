"""Modules: agents with a declared input and output, which call tools in a loop and spawn branches of themselves."""
