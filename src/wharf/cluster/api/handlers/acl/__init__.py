"""Handlers of access control: tokens, policies, roles, auth methods, binding rules, logins."""
