"""`fedpriv deploy` and `fedpriv status`: what containers run, and what operators look at."""
