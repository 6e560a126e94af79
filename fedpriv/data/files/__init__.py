"""Files as they come and as they are kept: folders, downloads, archives, arrays, the cache."""
