"""Plots as inline SVG, and the look of the pages."""
