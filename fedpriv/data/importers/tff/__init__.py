"""TensorFlow Federated's SQLite files, read without TensorFlow."""
