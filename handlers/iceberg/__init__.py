"""What the metadata of an Iceberg table says to a reader without a catalog."""
