//! Size of what a schema expands to.

use std::collections::BTreeMap;
use std::rc::Rc;

/// Assumed size of a part without content, bytes.
const LEAF_BYTES: f64 = 16.0;

/// What a schema expands to: a number of alternatives of an average content.
#[derive(Debug, Clone)]
pub(super) struct Shape<'a> {
    /// Number of alternatives; a fraction if only some of the surrounding alternatives have this part.
    pub(super) alternatives: f64,
    /// Part of the surrounding alternatives that have this part, 0 to 1.
    pub(super) present: f64,
    /// Content of an alternative without its members, bytes.
    pub(super) bytes: f64,
    /// Members of an alternative that have a name: properties, and array items by place.
    pub(super) members: BTreeMap<&'a str, Rc<Shape<'a>>>,
    /// All other members: additional properties, properties by pattern, and array items.
    pub(super) rest: Option<Rc<Shape<'a>>>,
    /// References among the alternatives, and how many there are of each. llguidance follows references only in an
    /// intersection.
    pub(super) references: BTreeMap<&'a str, f64>,
    /// Number of alternatives that llguidance compares with each of the others, because of a `oneOf`.
    pub(super) compared: f64,
}

impl<'a> Shape<'a> {
    pub(super) fn leaf(bytes: f64) -> Shape<'a> {
        let (members, references) = (BTreeMap::new(), BTreeMap::new());
        let (alternatives, present, compared) = (1.0, 1.0, 0.0);
        Shape { alternatives, present, bytes, members, rest: None, references, compared }
    }

    /// Whether an intersection with this part leaves the other part as it is.
    pub(super) fn is_empty(&self) -> bool {
        self.alternatives == 1.0
            && self.bytes == 0.0
            && self.members.is_empty()
            && self.rest.is_none()
            && self.references.is_empty()
    }

    /// Returns the size of all alternatives, bytes.
    pub(super) fn total_bytes(&self) -> f64 {
        let members: f64 = self.members.values().map(|member| member.total_bytes()).sum();
        let rest = self.rest.as_ref().map_or(0.0, |rest| rest.total_bytes());
        self.alternatives * (LEAF_BYTES + self.bytes + members + rest)
    }

    /// Takes out the references among the alternatives, which have no content of their own: the content becomes the
    /// average of the other alternatives.
    pub(super) fn take_references(&mut self) -> BTreeMap<&'a str, f64> {
        let references = std::mem::take(&mut self.references);
        let all = self.alternatives;
        self.alternatives = (all - references.values().sum::<f64>()).max(0.0);
        if self.alternatives > 1e-9 {
            let factor = all / self.alternatives;
            self.bytes *= factor;
            self.members.values_mut().for_each(|member| Rc::make_mut(member).scale(factor));
            self.rest.iter_mut().for_each(|rest| Rc::make_mut(rest).scale(factor));
        }
        references
    }

    fn scale(&mut self, factor: f64) {
        self.alternatives *= factor;
        self.present *= factor;
        self.references.values_mut().for_each(|count| *count *= factor);
    }
}
