"""Readers that parsers share: lines, JSON lines, console logs, torch files, configurations.

They turn bytes into values and say what they could not read; they know no framework.
"""
