"""Handing a run on to other tools: a timeline for Perfetto, and every table and product as files."""
