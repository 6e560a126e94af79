"""AdaDPS (Li et al., "Private Adaptive Optimization with Side Information", ICML 2022).

One file a table or figure, made of setups (`imdb`, `lstm`, `mnist`, `pooled_tags` and, by user,
`federated_tags`) and `methods`. `fedpriv reproduce` lists them; Figure 3 is in
`simulations.adadps.toy`.
"""
