"""The exported model: a folder that stands on its own."""
