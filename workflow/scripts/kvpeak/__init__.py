"""What the steps of the workflow share."""

__version__ = "0.1.0"
