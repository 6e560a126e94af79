"""DP-NSGD, Figures 2 to 4.

Figure 2 is of normalised and clipped SGD without noise; Figures 3 and 4 are heat maps of DP-NSGD
and DP-SGD over learning rate and r, or c.

Source: Yang, Zhang, Chen and Liu, "Normalized/Clip SGD with Perturbation for Differentially
Private Non-Convex Optimization" (2022, arXiv:2206.13033), Section 4 and Appendix D.1.
"""
