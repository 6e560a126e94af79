"""What a run would be like: noise, memory, time, and what noise alone does to the loss."""
