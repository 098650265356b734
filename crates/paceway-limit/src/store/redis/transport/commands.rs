//! Counts the commands in the bytes that redis-rs writes, because it does not say which calls it has written. Keeps no bytes.

/// The position in a stream of commands such as `*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`. redis-rs writes nothing else, so nothing is
/// checked.
#[derive(Debug, Default)]
pub(super) struct Commands {
    /// The words of the current command whose lengths are still to come.
    words: usize,
    /// The bytes of the current word that are still to come, with its line end.
    skips: usize,
    /// The digits of the current length so far.
    number: usize,
}

// === impl Commands ===

impl Commands {
    /// Reads on in `bytes`, and returns how many commands begin there.
    pub(super) fn begun(&mut self, bytes: &[u8]) -> usize {
        let (mut begun, mut at, mut number) = (0, self.skips, self.number);
        while let Some(&byte) = bytes.get(at) {
            at += 1;
            match byte {
                b'0'..=b'9' => {
                    number = number.wrapping_mul(10).wrapping_add(usize::from(byte - b'0'));
                }
                b'*' => begun += 1,
                b'\n' => {
                    match self.words.checked_sub(1) {
                        None => self.words = number,
                        Some(words) => (self.words, at) = (words, at + number + 2),
                    }
                    number = 0;
                }
                // `$` and `\r`.
                _ => {}
            }
        }
        (self.skips, self.number) = (at - bytes.len(), number);
        begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::transport::command;
    use proptest::prelude::*;

    proptest! {
        /// Wherever the socket stops taking bytes, each command is counted with its first byte.
        #[test]
        fn each_command_is_counted_once(
            commands in prop::collection::vec(prop::collection::vec("[*$\r\n0-9a-z]{0,12}", 1..5), 1..5),
            cut in 0..200_usize,
        ) {
            let packed = commands.iter().map(|words| {
                let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
                command(&words).get_packed_command()
            });
            let (mut all, mut starts) = (Vec::new(), Vec::new());
            for packed in packed {
                starts.push(all.len());
                all.extend(packed);
            }
            let (first, second) = all.split_at(cut.min(all.len()));
            let mut counter = Commands::default();
            let before = starts.iter().filter(|start| **start < first.len()).count();
            prop_assert_eq!(counter.begun(first), before);
            prop_assert_eq!(counter.begun(second), commands.len() - before);
        }
    }
}
