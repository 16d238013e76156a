"""The workbench. Without this file another package called lab, later on sys.path, would hide it."""
