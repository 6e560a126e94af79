"""What a user does in next-word prediction: local SGD on a recurrent network, fused."""
