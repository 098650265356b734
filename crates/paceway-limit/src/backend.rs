//! The interface for a program that brings a store of its own: the trait [`Backend`], the entries that it executes with their
//! replies, and the rules that decide them. `examples/own_store.rs` shows how they fit together. Decides nothing itself.
//!
//! [`StoreHandle::over`](crate::StoreHandle::over) makes a store of limiters of it.

pub use crate::{
    algorithm::{
        Algorithm, Gate, Grant, Level, Micros, OpenRule, Rule, RuleState,
        concurrency::Ticket,
        gate::{GateChange, OpenGate, Refusal},
        reserve::{Offer, Part, Parts, Want, charge, decide, earliest_way, lower, offer},
    },
    store::{
        ABSENT, Alternative, Alternatives, Backend, Beat, BoxFuture, Check, Checks, Decision,
        Entry, GONE, Heartbeat, Note, NoteChange, Pause, Placement, Reply, ScanPlace, ScanStep,
        TenantLevel, calls::Calls,
    },
};
