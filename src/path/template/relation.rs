//! How two path templates relate: whether one of them is more literal, or a path can match both with neither more literal.

use super::{PathTemplate, TemplateSegment, shape};

/// How the paths that one template matches relate to those of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// No path matches both.
    Apart,
    /// Both match the same paths.
    Same,
    /// The first matches a part of the paths of the second: it is the more literal one, and wins.
    MoreLiteral,
    /// The second is the more literal one.
    LessLiteral,
    /// Some paths match both, and each template is more literal in another segment: `/a/{x}` and `/{y}/b`.
    Crossing,
}

/// The more literal of two segments.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Neither,
    First,
    Second,
}

// === impl PathTemplate ===

impl PathTemplate {
    /// Compares the two segment by segment.
    pub fn relation(&self, other: &Self) -> Relation {
        let (mut first, mut second) = (false, false);
        for pair in pairs(&self.segments, &other.segments) {
            match pair.and_then(|(own, theirs)| more_literal(own, theirs)) {
                None => return Relation::Apart,
                Some(Side::Neither) => {}
                Some(Side::First) => first = true,
                Some(Side::Second) => second = true,
            }
        }
        match (first, second) {
            (false, false) => Relation::Same,
            (true, false) => Relation::MoreLiteral,
            (false, true) => Relation::LessLiteral,
            (true, true) => Relation::Crossing,
        }
    }

    /// Whether this template matches exactly the paths that both others match.
    pub fn is_meeting_of(&self, one: &Self, other: &Self) -> bool {
        let segments = pairs(&one.segments, &other.segments).map(|pair| {
            let (own, theirs) = pair?;
            Some(match more_literal(own, theirs)? {
                Side::Second => theirs.clone(),
                Side::First | Side::Neither => own.clone(),
            })
        });
        let segments = segments.collect::<Option<Vec<_>>>();
        segments.is_some_and(|segments| shape(&segments) == self.shape)
    }
}

// === impl TemplateSegment ===

impl TemplateSegment {
    /// Whether some segment of a path matches both.
    pub fn overlaps(&self, other: &Self) -> bool {
        more_literal(self, other).is_some()
    }
}

/// The segments of two templates side by side, as long as one of them has any. `{*rest}` is beside each further segment of
/// the other. `None` where one template has ended.
fn pairs<'t>(
    one: &'t [TemplateSegment],
    other: &'t [TemplateSegment],
) -> impl Iterator<Item = Option<(&'t TemplateSegment, &'t TemplateSegment)>> {
    let at = |all: &'t [TemplateSegment], i: usize| match (all.get(i), all.last()) {
        (None, Some(rest @ TemplateSegment::Rest)) => Some(rest),
        (found, _) => found,
    };
    (0..one.len().max(other.len())).map(move |i| at(one, i).zip(at(other, i)))
}

/// The more literal one of two segments; `None` if no text matches both.
fn more_literal(own: &TemplateSegment, theirs: &TemplateSegment) -> Option<Side> {
    use TemplateSegment::{Literal, Parameter, Rest};
    let begins = |text: &[u8], prefix: &[u8]| text.len() > prefix.len() && text.starts_with(prefix);
    match (own, theirs) {
        (Rest, Rest) => Some(Side::Neither),
        (_, Rest) => Some(Side::First),
        (Rest, _) => Some(Side::Second),
        (Literal(own), Literal(theirs)) => (own == theirs).then_some(Side::Neither),
        (Literal(own), Parameter(prefix)) => begins(own, prefix).then_some(Side::First),
        (Parameter(prefix), Literal(theirs)) => begins(theirs, prefix).then_some(Side::Second),
        (Parameter(own), Parameter(theirs)) if own == theirs => Some(Side::Neither),
        (Parameter(own), Parameter(theirs)) if own.starts_with(theirs) => Some(Side::First),
        (Parameter(own), Parameter(theirs)) => theirs.starts_with(own).then_some(Side::Second),
    }
}
