//! The names of a connection's last response. An upstream writes the same fields each time, so most names need not be made
//! again. Reads no values.

use crate::upstream::{error::WireError, headers::flags::HeaderFlags};
use http::HeaderName;
use smallvec::SmallVec;

/// The most names that are known of a connection. Responses of large APIs have 20 to 30 fields.
const MOST: usize = 32;
/// The longest name that is kept, in bytes, so that a connection keeps 7 KiB of names at most.
const LONGEST: usize = 64;

/// The names of the last response on a connection, in the order in which it had them.
#[derive(Debug, Default)]
pub(super) struct KnownNames(Vec<KnownName>);

#[derive(Debug)]
struct KnownName {
    /// As the upstream writes it, in capitals and small letters.
    text: SmallVec<[u8; 24]>,
    name: HeaderName,
    flag: HeaderFlags,
}

// === impl KnownNames ===

impl KnownNames {
    /// Returns the name that the field at `place` writes as `text`, and its flag. A name that the last response had at the
    /// same place is cloned; to parse one costs twice as much, and an allocation if it is no standard name.
    ///
    /// # Errors
    ///
    /// [`WireError::Syntax`] if the text is no name.
    pub(super) fn name(
        &mut self,
        place: usize,
        text: &[u8],
    ) -> Result<(HeaderName, HeaderFlags), WireError> {
        if let Some(known) = self.0.get(place)
            && known.text[..] == *text
        {
            return Ok((known.name.clone(), known.flag));
        }
        let name = parsed(text)?;
        let flag = HeaderFlags::of_field(&name);
        if place < MOST && text.len() <= LONGEST {
            // The response before had other fields from here on.
            self.0.truncate(place);
            // After a name that is too long, the places would be others.
            if self.0.len() == place {
                self.0.push(KnownName { text: text.into(), name: name.clone(), flag });
            }
        }
        Ok((name, flag))
    }
}

/// Parses the name of a field.
///
/// # Errors
///
/// [`WireError::Syntax`] if the text is no name.
pub(super) fn parsed(text: &[u8]) -> Result<HeaderName, WireError> {
    let name = HeaderName::from_bytes(text);
    name.map_err(|_| WireError::Syntax(httparse::Error::HeaderName))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(known: &mut KnownNames, fields: &[&str]) -> Vec<HeaderName> {
        let names = fields.iter().enumerate();
        names.map(|(place, text)| known.name(place, text.as_bytes()).expect("a name").0).collect()
    }

    #[test]
    fn remembered_names_do_not_leak_between_responses() {
        let mut known = KnownNames::default();
        let long = "l".repeat(LONGEST + 1);
        for fields in [
            vec!["Date", "X-Own", "content-length"],
            vec!["date", "x-own", "Content-Length", "etag"],
            vec!["X-Own", "date"],
            vec![&long, "date"],
            vec!["date", &long, "etag"],
            vec!["a"; 2 * MOST],
        ] {
            let made: Vec<HeaderName> =
                fields.iter().map(|text| text.parse().expect("a name")).collect();
            assert_eq!(named(&mut known, &fields), made);
            assert!(known.0.len() <= MOST);
        }
    }

    #[test]
    fn a_known_name_has_its_flag() {
        let mut known = KnownNames::default();
        for _ in 0..2 {
            let (_, flag) = known.name(0, b"Connection").expect("a name");
            assert_eq!(flag, HeaderFlags::CONNECTION);
        }
        assert!(known.name(0, b"a b").is_err());
    }
}
