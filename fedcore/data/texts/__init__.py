"""What texts, types and forms of files mean and may mean: ids, numbers as people write them, encodings."""
