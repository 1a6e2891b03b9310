"""Commands about access control: `wharf acl …`."""
