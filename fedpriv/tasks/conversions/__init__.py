"""Predicted conversion rates: a logistic model of logs in Criteo's form, measured by AUC loss."""
