//! Tests of `waits`.
