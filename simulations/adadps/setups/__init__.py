"""Models on data sets, the paper's way and a careful one, and the methods run on them."""
