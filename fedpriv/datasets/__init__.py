"""Data sets: files of users, corpora of questions and answers, images and click logs."""
