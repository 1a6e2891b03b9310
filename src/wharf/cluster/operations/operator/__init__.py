"""Operations for operators: garbage collection and cluster configuration."""
