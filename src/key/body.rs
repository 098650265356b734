//! The parts of a request's body that the limiters of a route read. Reads no body.

use super::{Cost, Template};
use crate::json::{JsonPointer, JsonValues};
use std::sync::Arc;

/// The places in the body of a request from which its keys and costs are read.
#[derive(Debug, Clone)]
pub struct BodyParts {
    /// Each place once.
    pub pointers: Arc<[JsonPointer]>,
    /// By the place of a pointer: a part beyond the bytes that may be read has no default.
    is_needed: Box<[bool]>,
}

// === impl BodyParts ===

impl BodyParts {
    /// The parts that `keys` and `costs` name; `None` if there are none.
    pub fn of<'c>(
        keys: impl Iterator<Item = &'c Template>,
        costs: impl Iterator<Item = &'c Cost>,
    ) -> Option<Self> {
        let (mut pointers, mut is_needed) = (Vec::new(), Vec::new());
        let mut add = |template: &Template, needs: bool| {
            for pointer in template.body_pointers() {
                match pointers.iter().position(|own| own == pointer) {
                    Some(place) => is_needed[place] |= needs,
                    None => {
                        pointers.push(pointer.clone());
                        is_needed.push(needs);
                    }
                }
            }
        };
        keys.for_each(|template| add(template, true));
        for cost in costs {
            cost.templates().for_each(|template| add(template, !cost.has_default()));
        }
        let parts = Self { pointers: pointers.into(), is_needed: is_needed.into() };
        (!parts.pointers.is_empty()).then_some(parts)
    }

    /// A part that `values` were not read as far as, and that has no default.
    pub fn missed(&self, values: &JsonValues) -> Option<&JsonPointer> {
        let mut places = 0..self.pointers.len();
        let place = places.find(|place| self.is_needed[*place] && values.is_unseen(*place))?;
        Some(&self.pointers[place])
    }
}
