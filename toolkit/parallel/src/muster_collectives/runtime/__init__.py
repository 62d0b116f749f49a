"""What every group has, whatever moves its bytes: types, errors, settings, records, summaries."""
