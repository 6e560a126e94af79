"""Data sets: files of users, corpora of questions and answers, images, reviews and click logs."""
