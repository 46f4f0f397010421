"""The versioned parameter store: numbered versions, objects, and leases on them."""
