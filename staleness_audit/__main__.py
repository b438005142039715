"""``python -m staleness_audit``."""

from staleness_audit.cli import main

main()
