//! Recognises lines of a file that are not YAML because of their indentation. Parses no YAML.

use super::mistake::Position;

/// The messages of the parser about a line that is not indented like those before it.
const SLIPS: [&str; 2] = ["did not find expected key", "did not find expected '-' indicator"];
/// The message about a line whose value has keys of its own, as that before a line which is indented further.
const FURTHER: &str = "mapping values are not allowed";

/// The place of the line whose indentation is the mistake that the parser found at `place` for this `reason`. `None` for
/// other mistakes.
pub(super) fn slip(text: &str, place: Position, reason: &str) -> Option<Position> {
    let line = |number: usize| text.lines().nth(number.checked_sub(1)?);
    if reason.contains("tab") {
        // The parser may name the line before.
        let number =
            (place.line..place.line + 2).find(|number| line(*number).is_some_and(has_tab))?;
        return Some(if number == place.line {
            place
        } else {
            Position { line: number, column: 1 }
        });
    }
    let own = line(place.line)?;
    let is_first = own.chars().take(place.column.saturating_sub(1)).all(|c| " -".contains(c));
    let is_slip = is_first && SLIPS.iter().any(|slip| reason.contains(slip));
    let before = text.lines().take(place.line.saturating_sub(1));
    let has_text = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let before = before.filter(has_text).last();
    let is_further = before.is_some_and(|before| indentation(own) > indentation(before));
    (is_slip || is_further && reason.contains(FURTHER)).then_some(place)
}

/// Whether the line begins with a tab, or with spaces and a tab.
fn has_tab(line: &str) -> bool {
    line.trim_start_matches(' ').starts_with('\t')
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}
