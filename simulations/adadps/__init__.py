"""AdaDPS (Li et al., "Private Adaptive Optimization with Side Information", ICML 2022).

`tables` has the tables and figures that are made of `setups` (`imdb`, `lstm`, `mnist` and
`pooled_tags`) and their methods; `figure2`, `figure6` (by user) and `toy` (Figure 3) stand alone.
`public_only` trains on public data alone. `python -m simulations` lists them.
"""
