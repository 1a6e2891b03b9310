"""Records of access control: tokens, policies, roles, auth methods and binding rules."""
