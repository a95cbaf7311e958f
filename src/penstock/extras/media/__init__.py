"""Images, video and audio in samples and batches."""
