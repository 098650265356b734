//! The door to this module for the targets of `fuzz/`, which alone are built with `--cfg fuzzing`. Decides nothing.

use super::{ClientAddress, block_2, line_1};
use std::net::IpAddr;

/// The client's address and the port that it asked for; `None` when the header names no address (LOCAL, UNKNOWN).
pub type Says = Option<(IpAddr, u16)>;

/// Reads a header of version 1, its end included; `None` when it is malformed.
pub fn version_1(line: &[u8]) -> Option<Says> {
    line_1(line).map(says)
}

/// Reads what follows the signature and the length of a header of version 2; `None` when it is malformed.
pub fn version_2(version_and_command: u8, family: u8, rest: &[u8]) -> Option<Says> {
    block_2(version_and_command, family, rest).map(says)
}

fn says(address: Option<ClientAddress>) -> Says {
    address.map(|ClientAddress { ip, port }| (ip, port))
}
