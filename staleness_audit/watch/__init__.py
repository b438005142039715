"""Watching a run while it goes on: the audit again and again, shown, served and acted upon.

``follow`` makes the state of a growing run; ``loop`` asks for it in turns and hands it to what shows it: ``dashboard``
on a terminal, ``lines`` elsewhere, ``metrics`` for Prometheus, ``alert`` for a command. Nothing here judges: a state is
the document of ``check``, for what was written so far.
"""
