//! The values in which Redis keeps the states of rates, as the Lua twins pack them: a gate or none, then the state. Each
//! algorithm reads its own part in its own file. It decides nothing and writes nothing.

use super::{Algorithm, EXACT, Gate, State, gate};

/// The state of a rate and its gate, as a store keeps them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRate {
    /// The gate, if the upstream has refused something lately.
    pub gate: Option<Gate>,
    /// The state; `None` if the limiter is unused.
    pub state: Option<State>,
}

/// The rest of a value: integers, little-endian.
pub(super) struct StoredBytes<'r>(&'r [u8]);

// === impl StoredRate ===

impl StoredRate {
    /// Reads the value of a limiter with this rule; `None` if this version has not written it.
    pub fn read(rule: &Algorithm, value: &[u8]) -> Option<Self> {
        let mut bytes = StoredBytes(value);
        let has_gate = value.first() == Some(&gate::LETTER);
        let gate = if has_gate { Some(Gate::read(&mut bytes)?) } else { None };
        let state = if bytes.0.is_empty() { None } else { Some(rule.read(&mut bytes)?) };
        Some(Self { gate, state })
    }
}

// === impl StoredBytes ===

impl StoredBytes<'_> {
    pub(super) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    /// Reads integers of 8 bytes, which a number of Lua holds exactly.
    pub(super) fn integers<const N: usize>(&mut self) -> Option<[i64; N]> {
        let mut all = [0; N];
        for one in &mut all {
            *one = i64::from_le_bytes(self.bytes()?);
            if !(-EXACT..EXACT).contains(one) {
                return None;
            }
        }
        Some(all)
    }

    pub(super) fn short(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    /// Reads an integer of 4 bytes, which is a number of entries.
    pub(super) fn count(&mut self) -> Option<usize> {
        usize::try_from(i32::from_le_bytes(self.bytes()?)).ok()
    }

    pub(super) fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }

    /// Reads `count` entries of `N` integers.
    pub(super) fn list<const N: usize>(&mut self, count: usize) -> Option<Vec<[i64; N]>> {
        let fits = count.checked_mul(8 * N).is_some_and(|bytes| bytes <= self.0.len());
        if fits { (0..count).map(|_| self.integers()).collect() } else { None }
    }

    /// Reads the entries of `N` integers up to the end.
    pub(super) fn rest<const N: usize>(&mut self) -> Option<Vec<[i64; N]>> {
        let all = self.list(self.0.len() / (8 * N))?;
        self.0.is_empty().then_some(all)
    }
}
