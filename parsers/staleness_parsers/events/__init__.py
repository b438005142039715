"""The canonical event log (DESIGN section 6); see ``parser``."""

from staleness_parsers.events.parser import PARSER, EventsParser

__all__ = ["PARSER", "EventsParser"]
