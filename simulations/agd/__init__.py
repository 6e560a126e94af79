"""DP-AGD compared with other private training of linear models."""
