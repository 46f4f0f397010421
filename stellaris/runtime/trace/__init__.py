"""The event log of a platform, and its views: columns, and a timeline for Perfetto."""
