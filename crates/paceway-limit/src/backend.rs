//! The interface for a program that brings a store of its own: the trait [`Backend`], the entries that it executes with their
//! replies, and the rules that decide them. `examples/own_store.rs` shows how they fit together. Decides nothing itself.
//!
//! [`StoreHandle::over`](crate::StoreHandle::over) makes a store of limiters of it.

pub use crate::{
    algorithm::{
        Algorithm, Gate, Grant, Level, Micros, OpenRule, Rule, RuleState,
        concurrency::Ticket,
        gate::{GateChange, OpenGate, Refusal},
        reserve::{Part, Parts, Want, charge, decide, lower},
    },
    store::{
        ABSENT, Backend, Beat, BoxFuture, Check, Checks, Decision, Entry, GONE, Heartbeat, Note,
        NoteChange, Pause, Placement, Reply, ScanPlace, ScanStep, TenantLevel, calls::Calls,
    },
};
