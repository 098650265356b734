//! Keys that name the account of a request: which of them are those of one account. Knows no request.

use super::{
    AccountNames, Template, TemplatePiece,
    escape::{Escapes, bounded},
    part::Part,
};

// === impl AccountNames ===

impl<'a> AccountNames<'a> {
    fn value(self, part: &Part) -> Option<&'a str> {
        match part {
            Part::Account => Some(self.name),
            Part::AccountQuota => Some(self.quota),
            _ => None,
        }
    }
}

/// The value as [`Template::fill`] writes it.
fn written(value: &str, escapes: Escapes) -> String {
    let mut key = String::new();
    match value {
        "-" => key.push_str("%2D"),
        value => escapes.push(value.as_bytes(), &mut key),
    }
    key
}

// === impl Template ===

impl Template {
    /// The key that all requests with an account have; `None` if other parts of a request are in it, too.
    pub(crate) fn of_account(&self, account: AccountNames<'_>) -> Option<String> {
        let texts = self.pieces.iter().map(|piece| match piece {
            TemplatePiece::Text(text) => Some(text.clone()),
            TemplatePiece::Part(part) => Some(written(account.value(part)?, self.escapes)),
        });
        Some(bounded(texts.collect::<Option<String>>()?, self.secret))
    }

    /// Whether a key is one of requests with an account. A hash does not tell, and is none.
    pub(crate) fn is_of_account(&self, key: &str, account: AccountNames<'_>) -> bool {
        let mut rest = key;
        for (i, piece) in self.pieces.iter().enumerate() {
            let left = match piece {
                TemplatePiece::Text(text) => rest.strip_prefix(text.as_str()),
                TemplatePiece::Part(part) => match account.value(part) {
                    Some(value) => rest.strip_prefix(written(value, self.escapes).as_str()),
                    None => self.end_of(i, rest).and_then(|end| rest.get(end..)),
                },
            };
            let Some(left) = left else { return false };
            rest = left;
        }
        rest.is_empty()
    }

    /// The length of the value with which `rest` begins, of the part with index `i`.
    fn end_of(&self, i: usize, rest: &str) -> Option<usize> {
        match &self.pieces[i + 1..] {
            [] => Some(rest.len()),
            [TemplatePiece::Text(last)] => Some(rest.strip_suffix(last.as_str())?.len()),
            // No value has the character that begins the text after it.
            [TemplatePiece::Text(text), ..] => rest.find(text.chars().next()?),
            [TemplatePiece::Part(_), ..] => None,
        }
    }
}
