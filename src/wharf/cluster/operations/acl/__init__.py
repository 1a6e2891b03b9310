"""Operations on ACL records: tokens, policies, roles, auth methods, binding rules and logins."""
