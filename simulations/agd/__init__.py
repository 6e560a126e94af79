"""DP-AGD beside other private training of linear models."""
