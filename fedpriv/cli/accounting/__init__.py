"""What the accounting commands share: noise with a memory, totals of ρ, grids of cohorts."""
