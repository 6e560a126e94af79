"""The figures of the AdaDPS paper, one file each."""
