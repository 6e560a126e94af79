"""The tables of the AdaDPS paper, one file each."""
