"""Adapters: a framework's own extension points, told to a recorder. Each imports its framework only when it is used."""
