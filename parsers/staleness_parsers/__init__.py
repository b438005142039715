"""Parsers shipped with staleness-audit: one module or folder per log format, found by entry point."""
