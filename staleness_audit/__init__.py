"""staleness-audit: were the tokens of an asynchronous RL run trained within the staleness bound?"""

__version__ = "0.1.0"
