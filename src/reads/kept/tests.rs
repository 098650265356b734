//! Tests of `kept`.
